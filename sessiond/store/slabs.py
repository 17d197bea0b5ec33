"""Memory by the page within a budget that is never exceeded, also not by what lies idle."""

from __future__ import annotations

import mmap

_KEPT = 4
PAGE = mmap.PAGESIZE


class Slabs:
    """Not safe from several threads: its owner has a lock. Sizes in bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self._idle: list[memoryview] = []

    @property
    def bytes(self) -> int:
        """Given out and idle together."""
        return self.used + sum(map(len, self._idle))

    def lacking(self, size: int) -> int:
        """How many bytes must be given back before `size` can be taken."""
        return max(0, self.used + paged(size) - self.budget)

    def take(self, size: int) -> memoryview:
        """Whole pages for `size` bytes, content undefined; counted before they are allocated.

        Raises MemoryError when they are not within the budget, or OSError when the system has none.
        """
        if self.lacking(size):
            raise MemoryError(f"{size} bytes are not within the budget of {self.budget}")
        capacity = paged(size)
        for slab in self._idle:
            if len(slab) == capacity:
                self._idle = [other for other in self._idle if other is not slab]
                self.used += capacity
                return slab
        while self.bytes + capacity > self.budget:
            self._idle.pop(0)
        self.used += capacity
        try:
            return _pages(capacity)
        except OSError:
            self.used -= capacity
            raise

    def give_back(self, slab: memoryview) -> None:
        self.used -= len(slab)
        self._idle.append(slab)
        del self._idle[:-_KEPT]


def paged(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _pages(capacity: int) -> memoryview:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, capacity, flags=flags))
