"""A session's turns without what was said in them: enough to list it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sessiond.sessions.tree import DAY_S


class TurnOutline(NamedTuple):
    """`length` tokens of the path to its end, `prompt_tokens` of which `cached` were reused.

    `created` in Unix seconds. `replaces` is the last turn of a line that it is a compaction of.
    """

    number: int
    parent: int | None
    length: int
    prompt_tokens: int
    cached: int
    model: str
    fingerprint: str
    created: float
    replaces: int | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """`end` is the last turn of the main line, None where there are no turns."""

    turns: int = 0
    lines: int = 0
    hit_rate: float = 0.0
    end: TurnOutline | None = None


def outline(turns: Sequence[TurnOutline], now: float) -> Outline:
    """Of one session; as its tree says it. `now` in Unix seconds."""
    parents, replaced = {turn.parent for turn in turns}, {turn.replaces for turn in turns}
    leaves = [turn for turn in turns if turn.number not in parents]
    kept = [leaf for leaf in leaves if leaf.number not in replaced]
    prompt = sum(turn.prompt_tokens for turn in turns)
    return Outline(
        turns=len(turns),
        lines=len(leaves),
        hit_rate=sum(turn.cached for turn in turns) / prompt if prompt else 0.0,
        end=_main(kept or leaves, now),
    )


def _main(leaves: Sequence[TurnOutline], now: float) -> TurnOutline | None:
    recent = [leaf for leaf in leaves if now - leaf.created <= DAY_S]
    if recent:
        return max(recent, key=lambda leaf: (leaf.length, leaf.created))
    return max(leaves, key=lambda leaf: leaf.created, default=None)
