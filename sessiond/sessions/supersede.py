"""Which snapshots later ones of the same line replace, on disk and in memory. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from sessiond.engine.memory import Tokens, is_prefix
from sessiond.store.loss import Rank

Kept = Mapping[Rank, int]
KEPT: Kept = {Rank.END: 4, Rank.LAST_BOUNDARY: 2}
"""On disk, along each branch of a line: the ends of the last four turns, where the next user
message begins, and the last two other places."""
KEPT_IN_MEMORY: Kept = {Rank.END: 4, Rank.LAST_BOUNDARY: 4}
"""What goes on counting as more than an ordinary boundary there."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A snapshot at the end of `tokens`, on disk or on its way."""

    key: str
    line: Hashable
    tokens: Tokens
    rank: Rank


def superseded(written: Sequence[Written], kept: Kept = KEPT) -> list[str]:
    """Keys that are not worth their bytes: so many of the same rank as are `kept` go on from there.

    The end of a line that another branch left behind is kept: nothing goes on from it. Fronts are
    always kept.
    """
    groups: dict[tuple[Hashable, Rank], list[Written]] = defaultdict(list)
    for snapshot in written:
        if snapshot.rank in kept:
            groups[snapshot.line, snapshot.rank].append(snapshot)
    return [key for (_, rank), group in groups.items() for key in _below(group, kept[rank])]


def _below(group: list[Written], kept: int) -> list[str]:
    ordered = sorted(group, key=lambda snapshot: len(snapshot.tokens), reverse=True)
    heights: dict[str, int] = {}
    for index, snapshot in enumerate(ordered):
        above = [heights[other.key] for other in ordered[:index] if _goes_on(other, snapshot)]
        heights[snapshot.key] = 1 + max(above, default=-1)
    return [key for key, height in heights.items() if height >= kept]


def _goes_on(longer: Written, shorter: Written) -> bool:
    return len(longer.tokens) > len(shorter.tokens) and is_prefix(shorter.tokens, longer.tokens)
