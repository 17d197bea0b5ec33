"""strace on one save: which system calls there are, and what comes of it when one of them fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CALLS = (
    "open,openat,creat,close,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,syncfs,sync,"
    "sync_file_range,msync,rename,renameat,renameat2,unlink,unlinkat,link,linkat,truncate,"
    "ftruncate,fallocate,mkdir,mkdirat,chmod,fchmod,fchmodat,copy_file_range,sendfile,read,pread64,"
    "readv,preadv,lseek,fcntl,flock,mmap,stat,lstat,fstat,newfstatat,statx,access,faccessat,"
    "faccessat2,statfs,fstatfs,getdents64,ioctl,utimensat"
)
"""Whatever may touch a file; which of them a save makes is seen by tracing it."""
FAULTS = {"kill": "signal=KILL", "EIO": "error=EIO", "ENOSPC": "error=ENOSPC"}
_LINE = re.compile(r"^(?P<thread>\d+) +(?P<call>\w+)\((?P<rest>.*)$")


@dataclass(frozen=True)
class Point:
    """The so-maniest call of that name in that thread, and what it was about."""

    thread: str
    call: str
    number: int
    about: str

    def __str__(self) -> str:
        return f"{self.thread} {self.call} {self.number} ({self.about})"


@dataclass
class Told:
    """What the process said, line by line, and what strace said it did to it."""

    words: dict[str, Any] = field(default_factory=dict)
    trace: str = ""

    @property
    def injected(self) -> bool:
        return "(INJECTED)" in self.trace or self.words.get("ended") == -9


def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.fail("strace is missing. It fails system calls one by one: apt install strace")
    return found


class Saver:
    """The process of `saved_turn`, which forks one that saves for every `save`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def save(self, directory: Path, kind: str, point: Point | None, *options: str) -> Told:
        """With `options` of strace; traced is the thread of the point, or all of them."""
        trace, told = directory / "trace", Told()
        self._send(f"{directory / 'state'} {kind}")
        begun = self._hear()
        threads = {name: thread for thread, name in begun["threads"].items()}
        target = begun["pid"] if point is None else threads[point.thread]
        command = [strace(), *(["-f"] if point is None else []), "-y", "-o", str(trace)]
        command += ["-e", f"trace={CALLS}", *options, "-p", str(target)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            attached = tracer.stderr.readline()
            assert "attached" in attached, f"strace cannot trace here: {attached}"
            self._send("go")
            while "ended" not in told.words:
                told.words |= self._hear()
            tracer.communicate(timeout=60)
        told.words["threads"] = begun["threads"]
        told.trace = trace.read_text(errors="replace")
        return told

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        words: dict[str, Any] = json.loads(self._process.stdout.readline())
        return words


@contextmanager
def saving() -> Iterator[Saver]:
    command = [sys.executable, "-m", "tests.sessions.saved_turn"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Saver(process)
        assert process.stdin is not None
        process.stdin.close()


def points(told: Told, directory: Path) -> list[Point]:
    """Every call of a traced save that is about a file below `directory`."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for line in told.trace.splitlines():
        match = _LINE.match(line)
        if match is None or match["thread"] not in told.words["threads"]:
            continue
        thread, call = told.words["threads"][match["thread"]], match["call"]
        counts[thread, call] += 1
        if str(directory) in match["rest"]:
            about = _about(match["rest"], directory)
            found.append(Point(thread, call, counts[thread, call], about))
    return found


def _about(rest: str, directory: Path) -> str:
    """The file, without the digits that differ from run to run."""
    _, _, path = rest.partition(str(directory))
    name = re.split(r'[>",]', path)[0].strip("/")
    return re.sub(r"[0-9a-f]{8,}", "…", name)
