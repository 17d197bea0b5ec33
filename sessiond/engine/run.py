"""One turn as the engine executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sessiond.engine.constraint import Constraint
from sessiond.engine.memory import Tokens
from sessiond.engine.sampling import Ending, Sampling


@dataclass(frozen=True, slots=True)
class Run:
    """Evaluate `prompt` from position `start` (the cells of `seq` hold the rest), then sample.

    Prefill chunks end exactly at the positions in `captures`, where the state is frozen.
    `max_tokens` 0 evaluates the prompt and samples nothing. `limit` is the most positions of one
    line. `logprobs` is the number of alternatives per token, None for none. `ranks` and `end_rank`
    go with the captures as they are: 0 where nothing is said, and where a prefill was broken off.
    `shown` are control tokens that are part of the text. A `constraint` is what the reply must
    follow; logprobs are of the model alone, without it.
    """

    seq: int
    prompt: Tokens
    start: int
    limit: int
    sampling: Sampling
    ending: Ending
    captures: tuple[int, ...] = ()
    capture_end: bool = False
    ranks: Mapping[int, int] = field(default_factory=dict)
    end_rank: int = 0
    logprobs: int | None = None
    shown: frozenset[int] = frozenset()
    constraint: Constraint | None = None
