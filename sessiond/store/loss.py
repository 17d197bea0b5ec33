"""Which snapshots go when room is needed: those whose loss costs least. Pure.

    loss   = weight(rank) * (position - position of the nearest lower neighbour of its line)
    next   = min by (bit length of loss, last use of its line, loss, last use, key)

The distance is what would be evaluated again to get back to the position; position 0 is a neighbour
of all. A removed entry leaves its distance to the next higher one, so prices are taken anew after
each pick: a line gets thinner everywhere before it loses a part. Losses within a factor of two
count as equal: among those, the line used longest ago loses its own first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Rank(IntEnum):
    """What a snapshot is good for. Of the ends of a line, only the last counts as one; the others
    count as last boundaries.
    """

    STEP = 0
    BOUNDARY = 1
    LAST_BOUNDARY = 2
    END = 3
    FRONT = 4


WEIGHT: Mapping[Rank, int] = {
    Rank.STEP: 1,
    Rank.BOUNDARY: 2,
    Rank.LAST_BOUNDARY: 4,
    Rank.END: 64,
    Rank.FRONT: 64,
}
"""How much likelier it is that somebody lands there. A front of 1,000 tokens outweighs an ordinary
boundary 30,000 tokens away from its neighbour; one of 30 tokens does not."""

Price = tuple[int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class Held:
    """`position` in tokens. `used` grows with each use of anything. A leased one never goes."""

    key: str
    line: Hashable
    position: int
    bytes: int
    rank: Rank
    used: int
    leased: bool = False


def victims(held: Sequence[Held], need: int) -> list[str] | None:
    """What to remove, in this order, to free at least `need` bytes; None if that cannot be done."""
    prices = _Prices(held)
    picked: list[str] = []
    while need > 0:
        entry = prices.take_cheapest()
        if entry is None:
            return None
        picked.append(entry.key)
        need -= entry.bytes
    return picked


def price(entry: Held, below: int, line_used: int, *, last_end: bool) -> Price:
    """What orders the picks; `below` is the position of the nearest lower neighbour."""
    rank = Rank.LAST_BOUNDARY if entry.rank is Rank.END and not last_end else entry.rank
    loss = WEIGHT[rank] * (entry.position - below)
    return loss.bit_length(), line_used, loss, entry.used, entry.key


@dataclass(slots=True)
class _Stop:
    """All entries of a line at one position, linked to the stops beside it."""

    position: int
    entries: dict[str, Held] = field(default_factory=dict)
    below: _Stop | None = None
    above: _Stop | None = None

    def unlink(self) -> None:
        if self.below:
            self.below.above = self.above
        if self.above:
            self.above.below = self.below

    @property
    def has_end(self) -> bool:
        return any(entry.rank is Rank.END for entry in self.entries.values())


class _Line:
    def __init__(self, held: Iterable[Held]) -> None:
        self._stops: dict[int, _Stop] = {}
        self._used = 0
        below: _Stop | None = None
        for entry in sorted(held, key=lambda entry: entry.position):
            self._used = max(self._used, entry.used)
            if below is None or below.position != entry.position:
                stop = _Stop(entry.position, below=below)
                if below:
                    below.above = stop
                self._stops[entry.position] = below = stop
            below.entries[entry.key] = entry
        self._ends = [stop for stop in self._stops.values() if stop.has_end]

    def entries(self) -> Iterator[Held]:
        for stop in self._stops.values():
            yield from stop.entries.values()

    def price(self, entry: Held) -> Price:
        stop = self._stops[entry.position]
        below = stop.below.position if stop.below else 0
        last_end = bool(self._ends) and self._ends[-1] is stop
        return price(entry, below, self._used, last_end=last_end)

    def remove(self, entry: Held) -> list[Held]:
        """Returns those whose price changed with it."""
        stop = self._stops[entry.position]
        del stop.entries[entry.key]
        changed: list[Held] = []
        if not stop.entries:
            stop.unlink()
            changed += stop.above.entries.values() if stop.above else ()
        if self._ends and self._ends[-1] is stop and not stop.has_end:
            while self._ends and not self._ends[-1].has_end:
                self._ends.pop()
            changed += self._ends[-1].entries.values() if self._ends else ()
        return changed


class _Prices:
    """The entries in a heap; outdated prices stay in it and are passed over."""

    def __init__(self, held: Sequence[Held]) -> None:
        self._held = {entry.key: entry for entry in held}
        by_line: defaultdict[Hashable, list[Held]] = defaultdict(list)
        for entry in held:
            by_line[entry.line].append(entry)
        self._lines = {name: _Line(entries) for name, entries in by_line.items()}
        self._current = {
            entry.key: line.price(entry)
            for line in self._lines.values()
            for entry in line.entries()
            if not entry.leased
        }
        self._heap = list(self._current.values())
        heapq.heapify(self._heap)

    def take_cheapest(self) -> Held | None:
        """Also removes it."""
        while self._heap:
            found = heapq.heappop(self._heap)
            key = found[-1]
            if self._current.get(key) == found:
                del self._current[key]
                self._remove(self._held[key])
                return self._held[key]
        return None

    def _remove(self, entry: Held) -> None:
        line = self._lines[entry.line]
        for changed in line.remove(entry):
            if not changed.leased:
                self._current[changed.key] = line.price(changed)
                heapq.heappush(self._heap, self._current[changed.key])
