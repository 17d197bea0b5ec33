"""Two buffers for draining: locked where that is allowed, never shared, never lost."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessiond.engine import host_memory
from sessiond.engine.host_memory import Ggml, HostMemory, MemoryLock, anonymous_memory
from sessiond.engine.staging import Staging, StagingBuffer
from sessiond.errors import EngineError

MIB = 1 << 20


class FakeGgml:
    """libggml with some devices; pointers are numbers, memory is real.

    A device is (type, name of its host buffer type or None). The CPU's buffer type is number 7.
    Of the memory of a device, `pinned` buffers are left; then come ordinary ones, as with CUDA.
    """

    CPU_TYPE = 7

    def __init__(self, *devices: tuple[int, str | None], pinned: int = 99) -> None:
        self.devices = devices
        self.pinned = pinned
        self.live: dict[int, tuple[int, ctypes.Array[Any]]] = {}
        self.freed: list[int] = []
        self._next = 1000

    def ggml_backend_dev_count(self) -> int:
        return len(self.devices)

    def ggml_backend_dev_get(self, index: int) -> int:
        return 100 + index

    def ggml_backend_dev_type(self, device: int) -> int:
        return self.devices[device - 100][0]

    def ggml_backend_dev_host_buffer_type(self, device: int) -> int | None:
        return device + 100 if self.devices[device - 100][1] else None

    def ggml_backend_buft_name(self, kind: int) -> bytes:
        return str(self.devices[kind - 200][1]).encode()

    def ggml_backend_buft_alloc_buffer(self, kind: int, size: int) -> int:
        self._next += 1
        taken = kind if self.pinned > 0 else self.CPU_TYPE
        self.pinned -= 1
        self.live[self._next] = (taken, (ctypes.c_uint8 * size)())
        return self._next

    def ggml_backend_buffer_get_type(self, buffer: int) -> int:
        return self.live[buffer][0]

    def ggml_backend_buffer_get_base(self, buffer: int) -> int:
        return ctypes.addressof(self.live[buffer][1])

    def ggml_backend_buffer_free(self, buffer: int) -> None:
        del self.live[buffer]
        self.freed.append(buffer)


def opened(fake: FakeGgml, size: int = 100, cap: int = MIB) -> Staging:
    return Staging.open(size, cap, (Ggml(fake).device_memory, anonymous_memory))


@pytest.fixture
def staging() -> Iterator[Staging]:
    staging = Staging.open(4 * MIB, 8 * MIB)
    yield staging
    staging.close()


def taken(staging: Staging, size: int = 10) -> StagingBuffer:
    buffer = staging.take(size)
    assert buffer is not None
    return buffer


def test_on_a_machine_without_a_gpu_the_memory_is_locked_or_says_why_not(staging: Staging) -> None:
    assert staging.kind in (MemoryLock.LOCKED, MemoryLock.PAGEABLE)
    expected = "mlock" if staging.kind is MemoryLock.LOCKED else "RLIMIT_MEMLOCK"
    assert expected in staging.detail
    assert staging.capacity == 4 * MIB


def test_locked_memory_is_resident_and_counted_as_locked() -> None:
    memory = anonymous_memory(3 * MIB)
    locked = locked_kib()
    resident = resident_kib(memory)
    memory.free()
    assert resident >= 3 * 1024
    if memory.kind is MemoryLock.LOCKED:
        assert locked - locked_kib() >= 3 * 1024


def locked_kib() -> int:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmLck"))


def resident_kib(memory: HostMemory) -> int:
    """Of the mapping in which the memory lies."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory.view))
    inside = False
    with Path("/proc/self/smaps").open() as maps:
        for line in maps:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                start, stop = (int(part, 16) for part in first.split("-"))
                inside = start <= address < stop
            elif inside and first == "Rss:":
                return int(line.split()[1])
    return 0


def test_where_locking_is_refused_the_memory_is_touched_and_the_reason_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_memory, "_lock_pages", lambda address, size: 12)
    memory = anonymous_memory(2 * MIB)
    assert memory.kind is MemoryLock.PAGEABLE
    assert "Cannot allocate memory" in memory.detail and "LimitMEMLOCK=infinity" in memory.detail
    assert resident_kib(memory) >= 2 * 1024
    memory.free()


def test_a_limit_between_the_two_counts_as_pageable(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [0, 12]
    monkeypatch.setattr(host_memory, "_lock_pages", lambda address, size: answers.pop(0))
    staging = Staging.open(MIB, MIB, (anonymous_memory,))
    assert staging.kind is MemoryLock.PAGEABLE and "RLIMIT_MEMLOCK" in staging.detail
    staging.close()


def test_the_real_library_loads_and_a_cpu_has_no_host_buffer_type() -> None:
    ggml = Ggml.load()
    assert ggml is not None
    types = [ggml._library.ggml_backend_dev_type(device) for device in devices_of(ggml)]
    if not set(types) & {1, 2}:
        assert ggml.device_memory(4096) is None


def devices_of(ggml: Ggml) -> list[int]:
    library = ggml._library
    return [library.ggml_backend_dev_get(at) for at in range(library.ggml_backend_dev_count())]


@pytest.mark.parametrize("kind", [1, 2])
def test_the_first_gpu_with_a_host_buffer_type_gives_the_memory(kind: int) -> None:
    fake = FakeGgml((0, "CPU_Host"), (3, "BLAS_Host"), (kind, None), (kind, "CUDA_Host"), (1, "B"))
    staging = opened(fake)
    assert (staging.kind, staging.detail) == (MemoryLock.DEVICE, "CUDA_Host")
    assert [buffer_type for buffer_type, _ in fake.live.values()] == [203, 203]
    buffer = taken(staging, 5)
    buffer.view[:] = b"state"
    assert b"state" in {bytes(memory)[:5] for _, memory in fake.live.values()}
    buffer.release()
    staging.close()
    assert fake.live == {} and len(fake.freed) == 2


@pytest.mark.parametrize("devices", [(), ((0, "CPU_Host"),), ((1, None),)])
def test_without_a_host_buffer_type_the_memory_is_anonymous(
    devices: tuple[tuple[int, str | None], ...],
) -> None:
    staging = opened(FakeGgml(*devices))
    assert staging.kind is not MemoryLock.DEVICE
    staging.close()


@pytest.mark.parametrize("pinned", [0, 1])
def test_ordinary_memory_in_place_of_pinned_is_not_taken_for_it(pinned: int) -> None:
    """CUDA gives it when pinned memory is short or GGML_CUDA_NO_PINNED is set."""
    fake = FakeGgml((1, "CUDA_Host"), pinned=pinned)
    staging = opened(fake)
    assert staging.kind is not MemoryLock.DEVICE
    assert fake.live == {} and len(fake.freed) == pinned + 1
    staging.close()


def test_when_no_source_has_memory_it_says_so() -> None:
    def refuses(size: int) -> HostMemory | None:
        raise OSError(12, "Cannot allocate memory")

    with pytest.raises(EngineError, match="no memory for two staging buffers"):
        Staging.open(100, 100, (lambda size: None, refuses))


def test_there_are_two_and_a_third_waits(staging: Staging) -> None:
    first, second = taken(staging), taken(staging)
    assert staging.take(10) is None
    first.view[:], second.view[:] = b"a" * 10, b"b" * 10
    assert (bytes(first.view), bytes(second.view)) == (b"a" * 10, b"b" * 10)
    first.release()
    third = taken(staging)
    assert bytes(second.view) == b"b" * 10
    for buffer in (second, third):
        buffer.release()


def test_a_view_has_exactly_the_size_and_what_is_larger_is_refused(staging: Staging) -> None:
    for size in (1, 4095, staging.capacity):
        buffer = taken(staging, size)
        assert (len(buffer.view), buffer.view.format, buffer.view.readonly) == (size, "B", False)
        buffer.release()
    assert staging.take(staging.capacity + 1) is None
    assert staging.take(0) is None


def test_a_second_release_does_not_free_what_somebody_else_has(staging: Staging) -> None:
    first = taken(staging)
    taken(staging)
    first.release()
    third = taken(staging)
    first.release()
    assert staging.take(10) is None
    third.view[:] = b"c" * 10
    third.release()


def test_use_after_release_is_an_error(staging: Staging) -> None:
    buffer = taken(staging)
    view = buffer.view
    buffer.release()
    with pytest.raises(EngineError, match="after it was released"):
        _ = buffer.view
    with pytest.raises(ValueError, match="released"):
        view[0] = 1


def test_it_grows_only_when_both_are_free_within_the_cap_and_never_shrinks() -> None:
    fake = FakeGgml((1, "CUDA_Host"))
    staging = opened(fake, size=100, cap=1000)
    buffer = taken(staging)
    assert not staging.resize(200)
    assert staging.capacity == 100
    buffer.release()
    assert staging.resize(200) and staging.capacity == 200
    assert len(fake.live) == 2 and len(fake.freed) == 2
    assert staging.resize(50) and staging.capacity == 200
    assert not staging.resize(1001) and staging.capacity == 200
    assert staging.resize(1000)
    both = [taken(staging, 1000), taken(staging, 1000)]
    for each in both:
        each.release()
    staging.close()
    assert fake.live == {}


def test_the_cap_holds_from_the_start_and_zero_is_allowed() -> None:
    staging = Staging.open(900, 300)
    assert staging.capacity == 300
    staging.close()
    empty = Staging.open(0, 300)
    assert empty.capacity == 0 and empty.take(1) is None
    assert empty.kind is MemoryLock.PAGEABLE and empty.detail
    assert empty.resize(200) and empty.capacity == 200
    empty.close()


def test_when_growing_fails_there_are_none_and_nothing_is_lost() -> None:
    fake = FakeGgml((1, "CUDA_Host"), pinned=2)
    staging = Staging.open(100, 1000, (Ggml(fake).device_memory,))
    with pytest.raises(EngineError, match="no memory"):
        staging.resize(200)
    assert staging.capacity == 0 and staging.take(10) is None
    staging.close()
    assert fake.live == {}


def test_closing_waits_for_the_last_holder() -> None:
    fake = FakeGgml((1, "CUDA_Host"))
    staging = opened(fake)
    buffer = taken(staging, 3)
    staging.close()
    assert len(fake.live) == 1
    buffer.view[:] = b"end"
    with pytest.raises(EngineError, match="closed"):
        staging.take(1)
    assert not staging.resize(500)
    buffer.release()
    buffer.release()
    staging.close()
    assert fake.live == {} and len(fake.freed) == 2


def test_taken_on_one_thread_and_released_on_another_no_buffer_has_two_holders(
    staging: Staging,
) -> None:
    handed: list[StagingBuffer] = []
    ready = threading.Semaphore(0)
    wrong: list[bytes] = []

    def worker() -> None:
        for _ in range(1000):
            ready.acquire()
            buffer = handed.pop(0)
            if len(set(bytes(buffer.view))) != 1:
                wrong.append(bytes(buffer.view))
            buffer.release()

    thread = threading.Thread(target=worker)
    thread.start()
    refused = 0
    for number in range(1000):
        while (buffer := staging.take(64)) is None:
            refused += 1
            thread.join(0.0001)
        buffer.view[:] = bytes([number % 256]) * 64
        handed.append(buffer)
        ready.release()
    thread.join()
    assert wrong == []
    both = [taken(staging), taken(staging)]
    assert staging.take(1) is None
    for each in both:
        each.release()
