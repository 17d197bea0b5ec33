"""How long it takes to read files and copy their bytes to where they are wanted, and nothing else.

    python -m scripts.plain_copy FILE...

A process of its own, so that its memory is as fresh as that of a daemon that has just started; the
place the bytes go to is paged in, as the cells of a context are. Writes `bytes`, `plain_ms` (each
file read whole, then copied) and `tuned_ms` (one aligned buffer that is used again and again).
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def plain(files: Sequence[Path], target: Bytes) -> None:
    at = 0
    for path in files:
        data = np.frombuffer(path.read_bytes(), np.uint8)
        target[at : at + len(data)] = data
        at += len(data)


def tuned(files: Sequence[Path], target: Bytes, buffer: mmap.mmap) -> None:
    source, at = np.frombuffer(buffer, np.uint8), 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            size = file.readinto(buffer)
        target[at : at + size] = source[:size]
        at += size


def measure(files: Sequence[Path]) -> dict[str, float]:
    sizes = [path.stat().st_size for path in files]
    target = np.ones(sum(sizes), np.uint8)
    plain_ms = _ms(lambda: plain(files, target))
    buffer = mmap.mmap(-1, max(sizes))
    np.frombuffer(buffer, np.uint8)[:] = 1
    return {
        "bytes": sum(sizes),
        "plain_ms": plain_ms,
        "tuned_ms": _ms(lambda: tuned(files, target, buffer)),
    }


def _ms(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    print(json.dumps(measure([Path(name) for name in sys.argv[1:]])))
