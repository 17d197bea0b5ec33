"""A copy of the ledger as it was before its format changes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path


def keep_copy(connection: sqlite3.Connection, path: Path, version: int) -> Path:
    """A whole and synced copy beside the ledger `path`, for its owner only.

    It replaces one of the same version. Raises OSError or sqlite3.Error; there is none then.
    """
    copy, partial = _place(path, version), Path(f"{path}.bak.partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(sqlite3.connect(partial)) as target:
            connection.backup(target)
        _sync(partial)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(copy)
    return copy


def forget_others(path: Path, kept: Path) -> None:
    """Of the ledger's copies only `kept` stays."""
    for copy in copies(path):
        if copy != kept:
            copy.unlink(missing_ok=True)


def forget_older(path: Path, before: float) -> int:
    """Removes copies made before that time, Unix seconds; how many there were."""
    gone = 0
    for copy in copies(path):
        with suppress(OSError):
            if copy.stat().st_mtime < before:
                copy.unlink()
                gone += 1
    return gone


def copies(path: Path) -> Iterator[Path]:
    yield from sorted(path.parent.glob(f"{path.name}.v*.bak"))


def _place(path: Path, version: int) -> Path:
    return Path(f"{path}.v{version}.bak")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
