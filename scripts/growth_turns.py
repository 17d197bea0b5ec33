"""What a daemon of the fake engine takes while turns go by: memory, threads, files, disk.

Kept: twenty sessions talk in turns, and all that was said stays, so something has to grow. Dropped:
a session talks for ten turns and is deleted, then the next one; nothing of them may stay.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench import words
from scripts.bench_footprint import disk_of, memory_of
from scripts.daemon import Daemon, DaemonFailed, Json
from scripts.fake_serve import FakeDaemon

KEPT_SESSIONS, DROPPED_AFTER = 20, 10
WARM_UP = 0.5
"""Of the turns: until then pools fill and caches grow to their size."""
LOOKS = 50
OPTIONS = ("--n-ctx", "8192", "--max-active", "4")
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
SAID_WORDS = 8
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Look:
    """After so many turns: bytes of memory and on disk, threads, open files and sockets."""

    turn: int
    rss: int
    own: int
    threads: int
    files: int
    disk: int


@dataclass(frozen=True, slots=True)
class Growth:
    """`slopes` are of each turn after the warm-up: bytes, threads and files, by regression.

    `tokens` are what a turn added to its session, of those sessions that are there at the end.
    """

    looks: tuple[Look, ...]
    slopes: dict[str, float]
    turn_ms: float
    tokens: float


Talk = Callable[[Daemon, int], None]


class Kept:
    """Each session goes on when the others have had a turn."""

    def __init__(self) -> None:
        self._lines: list[list[Json]] = [[] for _ in range(KEPT_SESSIONS)]

    def __call__(self, daemon: Daemon, turn: int) -> None:
        session = turn % KEPT_SESSIONS
        say(daemon, f"kept-{session}", self._lines[session], turn)


class Dropped:
    """A session is deleted after its last turn."""

    def __init__(self) -> None:
        self._line: list[Json] = []

    def __call__(self, daemon: Daemon, turn: int) -> None:
        session = f"dropped-{turn // DROPPED_AFTER}"
        say(daemon, session, self._line, turn)
        if turn % DROPPED_AFTER == DROPPED_AFTER - 1:
            forget(daemon, session)
            self._line = []


def say(daemon: Daemon, session: str, line: list[Json], turn: int) -> None:
    line.append({"role": "user", "content": words(SAID_WORDS, f"{session} {turn}").strip()})
    answer = daemon.chat(session, line, **BODY)
    line.append({"role": "assistant", "content": answer.text})


def forget(daemon: Daemon, session: str) -> None:
    while (answer := daemon.http.delete(f"/v1/sessions/{session}")).status_code == 409:
        time.sleep(_POLL_S)
    if answer.status_code != 204:
        raise DaemonFailed(f"{session} could not be deleted: {answer.text}")


def grow(folder: Path, talk: Talk, turns: int) -> Growth:
    every = max(1, turns // LOOKS)
    with FakeDaemon(folder / "state", OPTIONS) as daemon:
        looks = [look(daemon, 0)]
        began = time.perf_counter()
        for turn in range(turns):
            talk(daemon, turn)
            if turn % every == every - 1:
                looks.append(look(daemon, turn + 1))
        taken = time.perf_counter() - began
        tokens = tokens_of(daemon)
    return Growth(tuple(looks), slopes(looks), 1e3 * taken / turns, tokens / turns)


def tokens_of(daemon: Daemon) -> int:
    """Of all sessions, those of their longest paths."""
    listed = daemon.http.get("/v1/sessions").raise_for_status().json()
    return sum(session["tokens"] for session in listed["sessions"])


def look(daemon: Daemon, turn: int) -> Look:
    process = Path(f"/proc/{daemon.pid}")
    memory = memory_of(daemon.pid)
    return Look(
        turn=turn,
        rss=memory.rss,
        own=memory.anonymous,
        threads=len([*(process / "task").iterdir()]),
        files=len([*(process / "fd").iterdir()]),
        disk=_disk(daemon.state),
    )


def _disk(folder: Path) -> int:
    """A file may go while the others are looked at."""
    try:
        return disk_of(folder)
    except FileNotFoundError:
        return _disk(folder)


def slopes(looks: Sequence[Look]) -> dict[str, float]:
    warm = [each for each in looks if each.turn >= WARM_UP * looks[-1].turn]
    at = [each.turn for each in warm]
    return {
        kind: statistics.linear_regression(at, [getattr(each, kind) for each in warm]).slope
        for kind in ("rss", "own", "threads", "files", "disk")
    }
