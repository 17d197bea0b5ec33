"""Which snapshots on disk later ones of the same line replace. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sessiond.engine.memory import Tokens, common_prefix
from sessiond.store.loss import Rank

KEPT = {Rank.END: 4, Rank.LAST_BOUNDARY: 2}
"""Along each branch of a line: the ends of the last four turns, where the next user message begins,
and the last two other places."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A snapshot on disk at the end of `tokens`."""

    key: str
    line: Hashable
    tokens: Tokens
    rank: Rank


def superseded(written: Sequence[Written]) -> list[str]:
    """Keys that are not worth their bytes: so many of the same rank as are KEPT go on from there.

    The end of a line that another branch left behind is kept: nothing goes on from it. Fronts are
    always kept.
    """
    groups: dict[tuple[Hashable, Rank], list[Written]] = defaultdict(list)
    for snapshot in written:
        if snapshot.rank in KEPT:
            groups[snapshot.line, snapshot.rank].append(snapshot)
    return [key for (_, rank), group in groups.items() for key in _below(group, KEPT[rank])]


def _below(group: list[Written], kept: int) -> list[str]:
    ordered = sorted(group, key=lambda snapshot: len(snapshot.tokens), reverse=True)
    heights: dict[str, int] = {}
    for index, snapshot in enumerate(ordered):
        above = [heights[other.key] for other in ordered[:index] if _goes_on(other, snapshot)]
        heights[snapshot.key] = 1 + max(above, default=-1)
    return [key for key, height in heights.items() if height >= kept]


def _goes_on(longer: Written, shorter: Written) -> bool:
    length = len(shorter.tokens)
    return len(longer.tokens) > length and common_prefix(longer.tokens, shorter.tokens) == length
