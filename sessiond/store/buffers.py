"""Memory that is used again: fresh memory costs a page fault every 4 KiB, as much as the read.

It goes back when the last view of it is gone, whoever holds it, so nobody has to hand it back.
"""

from __future__ import annotations

import weakref
from threading import Lock

import numpy as np
import numpy.typing as npt

Slab = npt.NDArray[np.uint8]

_GRAIN = 1 << 20
_PAGE = 4096


class Buffers:
    """Keeps at most `keep` bytes of memory that nobody uses. Any thread may call."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lock = Lock()
        self._idle: list[Slab] = []

    def take(self, size: int) -> memoryview:
        """A writable view of `size` bytes, content undefined, of which there is no other view."""
        slab = self._fitting(size)
        if slab is None:
            slab = _aligned(-(-size // _GRAIN) * _GRAIN)
        used = slab[:size]
        weakref.finalize(used, self._give_back, slab).atexit = False
        return used.data

    def stock(self, size: int, count: int) -> None:
        """Have `count` buffers of `size` bytes idle, as far as that many are kept, paged in."""
        taken = [self.take(size) for _ in range(min(count, self._keep // size))]
        for buffer in taken:
            np.frombuffer(buffer, dtype=np.uint8)[::_PAGE] = 0

    @property
    def idle(self) -> int:
        """Bytes kept for later."""
        return sum(slab.nbytes for slab in self._idle)

    def _fitting(self, size: int) -> Slab | None:
        with self._lock:
            hottest_first = reversed(self._idle)
            fits = [s for s in hottest_first if size <= s.nbytes <= max(2 * size, _GRAIN)]
            best = min(fits, key=lambda slab: slab.nbytes, default=None)
            if best is not None:
                self._idle = [slab for slab in self._idle if slab is not best]
            return best

    def _give_back(self, slab: Slab) -> None:
        with self._lock:
            self._idle.append(slab)
            while self._idle and sum(slab.nbytes for slab in self._idle) > self._keep:
                self._idle.pop(0)


def _aligned(size: int) -> Slab:
    """At a page boundary: 16 bytes behind one, as malloc has it, reads from the page cache take
    more than twice as long on AMD Zen (page aliasing of `rep movsb`)."""
    memory = np.empty(size + _PAGE, dtype=np.uint8)
    start = -memory.ctypes.data % _PAGE
    return memory[start : start + size]
