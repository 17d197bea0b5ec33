"""The disk that saved state goes to: how much room, and how fast."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.cli import words
from sessiond.cli.doctor.finding import Finding, note, ok, problem
from sessiond.config.settings import Config
from sessiond.sessions.sizing import store_quota
from sessiond.units import Share

MOST_BYTES = 64 << 20
"""That are written, read and removed again to measure."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes per second. `sound`: what was read is what was written."""

    write: float
    read: float
    sound: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """Bytes. `used` by saved state already. `speed` None: not measured, `why` says why."""

    directory: Path
    free: int
    used: int
    quota: int
    keep_free: int
    speed: Speed | None = None
    why: str = ""


def observe(config: Config, cache: Path, *, used: int, busy: bool) -> Facts:
    """`busy`: a daemon answers just now, whose disk is left to it."""
    disk = shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.exists()))
    quota, keep_free = config.store.quota, config.store.keep_free
    if quota == "auto":
        quota = store_quota(disk.free, used)
    limits = (
        quota.of(disk.free) if isinstance(quota, Share) else quota,
        keep_free.of(disk.total) if isinstance(keep_free, Share) else keep_free,
    )
    size = min(MOST_BYTES, disk.free - limits[1])
    why = _why_not(cache, size, busy=busy)
    try:
        speed = None if why else measure(cache, size)
    except OSError as error:
        speed, why = None, f"{error.strerror}"
    return Facts(cache, disk.free, used, *limits, speed, why)


def judge(facts: Facts) -> Iterator[Finding]:
    free, kept = words.size(facts.free), words.size(facts.keep_free)
    left = facts.free - facts.keep_free
    if left <= 0:
        yield problem(
            "disk",
            f"{free} free at {facts.directory}, of which store.keep_free leaves {kept} alone",
            "No state is saved: after a restart everything is read again.",
            "Make room, or lower store.keep_free.",
        )
    elif facts.quota > left + facts.used:
        yield note(
            "disk",
            f"{free} free, {kept} kept free, quota {words.size(facts.quota)}",
            f"Only {words.size(left + facts.used)} of the quota can be used.",
            f'store.quota = "{(left + facts.used) >> 30}GiB", or make room',
        )
    else:
        yield ok("disk", f"{free} free, {kept} kept free, quota {words.size(facts.quota)}")
    yield from _of_speed(facts)


def _of_speed(facts: Facts) -> Iterator[Finding]:
    speed = facts.speed
    if speed is None:
        yield note("disk speed", f"not measured: {facts.why}")
    elif not speed.sound:
        yield problem(
            "disk speed",
            "what was read is not what was written",
            "The disk or the memory of this machine is failing.",
            "Back up. See: dmesg, smartctl -a DEVICE, memtest",
        )
    else:
        rates = f"{words.size(int(speed.write))}/s written, {words.size(int(speed.read))}/s read"
        yield ok("disk speed", rates)


def measure(directory: Path, size: int) -> Speed:
    """Writes `size` bytes to a file without a name, syncs and reads them. Raises OSError."""
    data = os.urandom(_CHUNK)
    chunks, sound = max(1, size // _CHUNK), True
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(chunks):
            file.write(data)
        os.fsync(file.fileno())
        written = time.perf_counter()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        for _ in range(chunks):
            sound = file.read(_CHUNK) == data and sound
        read = time.perf_counter()
    total = chunks * _CHUNK
    return Speed(total / max(written - began, 1e-9), total / max(read - start, 1e-9), sound)


def _why_not(cache: Path, size: int, *, busy: bool) -> str:
    if busy:
        return "the daemon is answering"
    if not cache.is_dir():
        return f"{cache} is made at the first start"
    if not os.access(cache, os.W_OK):
        return f"this user may not write to {cache}"
    return "" if size >= _CHUNK else "there is no room"
