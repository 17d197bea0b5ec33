"""Which snapshots on disk later ones of the same line replace. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sessiond.engine.memory import Tokens, common_prefix
from sessiond.store.loss import Rank

KEPT = 2
"""Of each rank, along each branch of a line: the last one, and the one before it to go back to."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A snapshot on disk at the end of `tokens`."""

    key: str
    line: Hashable
    tokens: Tokens
    rank: Rank


def superseded(written: Sequence[Written]) -> list[str]:
    """Keys that are not worth their bytes: at least KEPT of the same rank go on from there.

    The end of a line that another branch left behind is kept: nothing goes on from it. Fronts are
    always kept.
    """
    groups: dict[tuple[Hashable, Rank], list[Written]] = defaultdict(list)
    for snapshot in written:
        if snapshot.rank is not Rank.FRONT:
            groups[snapshot.line, snapshot.rank].append(snapshot)
    return [key for group in groups.values() for key in _in_group(group)]


def _in_group(group: list[Written]) -> list[str]:
    ordered = sorted(group, key=lambda snapshot: len(snapshot.tokens), reverse=True)
    heights: dict[str, int] = {}
    for index, snapshot in enumerate(ordered):
        above = [heights[other.key] for other in ordered[:index] if _goes_on(other, snapshot)]
        heights[snapshot.key] = 1 + max(above, default=-1)
    return [key for key, height in heights.items() if height >= KEPT]


def _goes_on(longer: Written, shorter: Written) -> bool:
    length = len(shorter.tokens)
    return len(longer.tokens) > length and common_prefix(longer.tokens, shorter.tokens) == length
