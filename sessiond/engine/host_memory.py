"""Memory of the host that a device copies to at full speed: page-locked, and touched beforehand.

The device's own kind comes from libggml, which llama-cpp-python does not expose; ctypes does. Where
the device has none, or there is no device, anonymous memory is locked, and if that is not allowed,
it is at least touched, so that no copy waits for a page fault.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

_GPU_TYPES = (1, 2)
"""ggml's numbers for a GPU with memory of its own and for an integrated one."""

_POINTERS: dict[str, list[Any]] = {
    "ggml_backend_dev_get": [ctypes.c_size_t],
    "ggml_backend_dev_host_buffer_type": [ctypes.c_void_p],
    "ggml_backend_buft_alloc_buffer": [ctypes.c_void_p, ctypes.c_size_t],
    "ggml_backend_buffer_get_base": [ctypes.c_void_p],
    "ggml_backend_buffer_get_type": [ctypes.c_void_p],
}
_OTHERS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_count": (ctypes.c_size_t, []),
    "ggml_backend_dev_type": (ctypes.c_int, [ctypes.c_void_p]),
    "ggml_backend_buft_name": (ctypes.c_char_p, [ctypes.c_void_p]),
    "ggml_backend_buffer_free": (None, [ctypes.c_void_p]),
}


class MemoryLock(StrEnum):
    """`device`: from the device's library. `pageable`: neither that nor locked."""

    DEVICE = "device"
    LOCKED = "locked"
    PAGEABLE = "pageable"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """`free` ends every use of `view`, and must be called exactly once."""

    view: memoryview
    kind: MemoryLock
    detail: str
    free: Callable[[], None]


Source = Callable[[int], HostMemory | None]
"""Makes so many bytes of memory, or None if it has no such memory."""


class Ggml:
    """The calls of libggml that are needed here. Call after llama.cpp's backends are started."""

    def __init__(self, library: Any) -> None:
        """`library` has the C functions as attributes, pointers as integers, NULL as None or 0."""
        self._library = library

    @classmethod
    def load(cls) -> Ggml | None:
        """That of the installed llama-cpp-python; None if it is not built as shared libraries."""
        import llama_cpp.llama_cpp as llama

        folder = Path(llama.__file__).parent / "lib"
        found = [_named(folder, name) for name in ("ggml", "ggml-base")]
        paths = [path for path in found if path]
        return cls(_Declared([ctypes.CDLL(str(path)) for path in paths])) if paths else None

    def device_memory(self, size: int) -> HostMemory | None:
        """From the first GPU that has a host buffer type; None if there is none, or it has none
        left: then ggml gives ordinary memory instead, which the buffer's type tells.
        """
        ggml = self._library
        for kind in self._host_buffer_types():
            buffer = ggml.ggml_backend_buft_alloc_buffer(kind, size)
            if not buffer:
                continue
            if ggml.ggml_backend_buffer_get_type(buffer) != kind:
                ggml.ggml_backend_buffer_free(buffer)
                continue
            return self._memory(buffer, size, ggml.ggml_backend_buft_name(kind).decode())
        return None

    def _host_buffer_types(self) -> Iterator[int]:
        ggml = self._library
        for index in range(ggml.ggml_backend_dev_count()):
            device = ggml.ggml_backend_dev_get(index)
            if ggml.ggml_backend_dev_type(device) in _GPU_TYPES:
                kind = ggml.ggml_backend_dev_host_buffer_type(device)
                if kind:
                    yield kind

    def _memory(self, buffer: int, size: int, name: str) -> HostMemory:
        base = self._library.ggml_backend_buffer_get_base(buffer)
        view = memoryview((ctypes.c_uint8 * size).from_address(base)).cast("B")
        ctypes.memset(base, 0, size)

        def free() -> None:
            view.release()
            self._library.ggml_backend_buffer_free(buffer)

        return HostMemory(view, MemoryLock.DEVICE, name, free)


class _Declared:
    """Functions of several libraries, with their types."""

    def __init__(self, libraries: list[ctypes.CDLL]) -> None:
        signatures = {name: (ctypes.c_void_p, given) for name, given in _POINTERS.items()} | _OTHERS
        for name, (returned, given) in signatures.items():
            function = next(lib for lib in libraries if hasattr(lib, name))[name]
            function.restype, function.argtypes = returned, given
            setattr(self, name, function)


def device_memory(size: int) -> HostMemory | None:
    ggml = Ggml.load()
    return ggml.device_memory(size) if ggml else None


def anonymous_memory(size: int) -> HostMemory:
    """Touched, and locked if the process may lock so much."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.memset(address, 0, size)
    failure = _lock_pages(address, size)
    view = memoryview(pages)

    def free() -> None:
        view.release()
        with suppress(BufferError):  # a slice of it lives; the pages go with that
            pages.close()

    if failure:
        return HostMemory(view, MemoryLock.PAGEABLE, _not_locked(failure), free)
    return HostMemory(view, MemoryLock.LOCKED, "mlock", free)


SOURCES: tuple[Source, ...] = (device_memory, anonymous_memory)


def give_back() -> None:
    """What the C library keeps of freed memory goes back to the system, where it can do that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _lock_pages(address: int, size: int) -> int:
    """0, or the errno of mlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0:
        return 0
    return ctypes.get_errno()


def _not_locked(failure: int) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return (
        f"mlock: {os.strerror(failure)}; RLIMIT_MEMLOCK is {limit} bytes. "
        "Set LimitMEMLOCK=infinity for the service, or ulimit -l unlimited."
    )


def _named(folder: Path, name: str) -> Path | None:
    names = (f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll")
    return next((folder / file for file in names if (folder / file).is_file()), None)
