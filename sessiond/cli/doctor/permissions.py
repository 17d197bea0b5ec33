"""Who may read what sessiond keeps: conversations and keys are for one user."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.cli.doctor.finding import Finding, ok, problem

OTHERS = 0o077
CHANGED_BY_OTHERS = 0o022
"""The settings hold no secret: they may be read."""
MOST = 2000
"""Entries of a directory that are looked at."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`mode` are the permission bits. `what` it is: config, keys, state or cache."""

    what: str
    path: Path
    mode: int
    is_directory: bool


def observe(config: Path | None, keys: Path | None, state: Path, cache: Path) -> list[Entry]:
    """What is not there is left out."""
    found = [entry("config", config), entry("keys", keys)]
    for what, directory in (("state", state), ("cache", cache)):
        found += [entry(what, directory), *(entry(what, path) for path in _inside(directory))]
    return [each for each in found if each is not None]


def entry(what: str, path: Path | None) -> Entry | None:
    try:
        found = path.lstat() if path else None
    except OSError:
        return None
    if path is None or found is None or stat.S_ISLNK(found.st_mode):
        return None
    return Entry(what, path, stat.S_IMODE(found.st_mode), stat.S_ISDIR(found.st_mode))


def judge(entries: Iterable[Entry]) -> Iterator[Finding]:
    entries = list(entries)
    open_ones = [each for each in entries if each.mode & _unwanted(each.what)]
    for what in ("config", "keys", "state", "cache"):
        found = [each for each in open_ones if each.what == what]
        if found:
            yield _finding(what, found)
    if not open_ones:
        told = f"{len(entries)} looked at, none is open to others"
        yield ok("permissions", told if entries else "nothing is there yet")


def _unwanted(what: str) -> int:
    return CHANGED_BY_OTHERS if what == "config" else OTHERS


def _finding(what: str, found: list[Entry]) -> Finding:
    first = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    seen = f"{first.path} has mode {first.mode:04o}{more}"
    if what == "config":
        mend = f"chmod go-w {first.path}"
        return problem("permissions", seen, "Others may change the settings.", mend)
    mend = f"chmod {'go-rwx -R' if len(found) > 1 else 'go-rwx'} {_top(found)}"
    meaning = "Others may read your keys." if what == "keys" else "Others may read conversations."
    return problem("permissions", seen, meaning, mend)


def _top(found: list[Entry]) -> Path:
    first = found[0]
    return first.path if first.is_directory or len(found) == 1 else first.path.parent


def _inside(directory: Path) -> list[Path]:
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return []
    return paths[:MOST]
