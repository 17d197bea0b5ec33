"""Two buffers in host memory that snapshots are drained into, allocated once.

The engine thread takes one and fills it; a worker copies it away and releases it. Two, so that the
next drain needs not wait for the last copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from sessiond.engine.host_memory import SOURCES, HostMemory, MemoryLock, Source
from sessiond.errors import EngineError

BUFFERS = 2


class StagingBuffer:
    """One taken buffer. Its holder may hand it to another thread, which then holds it."""

    def __init__(self, staging: Staging, memory: HostMemory, size: int) -> None:
        self._staging = staging
        self._view = memory.view[:size]
        self.memory = memory
        self.released = False

    @property
    def view(self) -> memoryview:
        """Exactly the bytes asked for, writable. Raises EngineError after `release`."""
        if self.released:
            raise EngineError("A staging buffer was used after it was released.")
        return self._view

    def release(self) -> None:
        """Give it back; the view is dead from then on. A second time does nothing."""
        self._staging._take_back(self)


class Staging:
    """`take` and `resize` on the engine thread, everything else on any."""

    def __init__(self, cap: int, sources: Sequence[Source]) -> None:
        """Use `open`."""
        self._cap = cap
        self._sources = sources
        self._lock = Lock()
        self._all: list[HostMemory] = []
        self._free: list[HostMemory] = []
        self._closed = False

    @classmethod
    def open(cls, size: int, cap: int, sources: Sequence[Source] = SOURCES) -> Staging:
        """Two buffers of `size` bytes each, at most `cap` each, from the first source that has two.

        Raises EngineError if none has. A `size` of 0 has no buffers until `resize`.
        """
        staging = cls(cap, sources)
        staging._allocate(min(size, cap))
        return staging

    @property
    def capacity(self) -> int:
        """Bytes of one buffer."""
        return len(self._all[0].view) if self._all else 0

    @property
    def kind(self) -> MemoryLock:
        """That of the worse buffer: the limit of locked memory may be between the two."""
        return self._worse.kind if self._worse else MemoryLock.PAGEABLE

    @property
    def detail(self) -> str:
        """What the memory is called, or why it is pageable, for people."""
        return self._worse.detail if self._worse else "There are no staging buffers."

    def take(self, size: int) -> StagingBuffer | None:
        """A buffer for `size` bytes, content undefined; None if both are taken or it is larger."""
        with self._lock:
            if self._closed:
                raise EngineError("The staging buffers are closed.")
            if not self._free or not 0 < size <= self.capacity:
                return None
            return StagingBuffer(self, self._free.pop(), size)

    def resize(self, size: int) -> bool:
        """Grow both to `size` bytes, if that is within the cap and both are free; never shrinks.

        Whether `take(size)` can work now. Raises EngineError if there is no memory at all.
        """
        with self._lock:
            if size <= self.capacity:
                return True
            if self._closed or size > self._cap or len(self._free) < len(self._all):
                return False
            self._release_memory()
            self._allocate(size)
            return True

    def close(self) -> None:
        """Free the memory; that of a taken buffer when it is released."""
        with self._lock:
            self._closed = True
            self._release_memory()

    @property
    def _worse(self) -> HostMemory | None:
        pageable = [memory for memory in self._all if memory.kind is MemoryLock.PAGEABLE]
        return next(iter([*pageable, *self._all]), None)

    def _take_back(self, buffer: StagingBuffer) -> None:
        with self._lock:
            if buffer.released:
                return
            buffer.released = True
            buffer._view.release()
            if self._closed:
                buffer.memory.free()
            else:
                self._free.append(buffer.memory)

    def _release_memory(self) -> None:
        free, self._free, self._all = self._free, [], []
        for memory in free:
            memory.free()

    def _allocate(self, size: int) -> None:
        if size < 1:
            return
        for source in self._sources:
            made = _two_of(source, size)
            if made:
                self._all, self._free = made, list(made)
                return
        raise EngineError(
            f"There is no memory for two staging buffers of {size} bytes.",
            hint="Free memory, or lower the size of the ring.",
        )


def _two_of(source: Source, size: int) -> list[HostMemory]:
    """Both or none."""
    made: list[HostMemory] = []
    while len(made) < BUFFERS:
        try:
            memory = source(size)
        except OSError:
            memory = None
        if memory is None:
            for each in made:
                each.free()
            return []
        made.append(memory)
    return made
