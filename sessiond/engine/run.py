"""One turn as the engine executes it."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.engine.memory import Tokens
from sessiond.engine.sampling import Ending, Sampling


@dataclass(frozen=True, slots=True)
class Run:
    """Evaluate `prompt` from position `start` (the cells of `seq` hold the rest), then sample.

    Prefill chunks end exactly at the positions in `captures`, where the state is frozen.
    `max_tokens` 0 evaluates the prompt and samples nothing. `limit` is the most positions of one
    line. `logprobs` is the number of alternatives per token, None for none.
    """

    seq: int
    prompt: Tokens
    start: int
    limit: int
    sampling: Sampling
    ending: Ending
    captures: tuple[int, ...] = ()
    capture_end: bool = False
    logprobs: int | None = None
