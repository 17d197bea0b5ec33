"""How full a disk is, in words: which directory, how much is free, and what a person can do."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from humanize import naturalsize

_NOTHING = 1 << 20
"""Fewer bytes are about none: a database needs some for every change."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for a file of `size`, all in bytes. `used` counts against `quota`, `pinned` of
    it cannot be evicted; `free` is what the disk of `directory` has. Where there is too little of
    both, `disk` says that the disk is what lacks more.
    """

    directory: Path
    size: int
    quota: int
    used: int
    pinned: int
    keep_free: int
    free: int
    disk: bool

    def __str__(self) -> str:
        """What is short, and the way out."""
        if self.size > self.quota:
            return (
                f"A state file of {size(self.size)} does not fit into store.quota ="
                f" {size(self.quota)}. Raise store.quota."
            )
        way = "Unpin a session (sessiond unpin NAME), or " if self.pinned else ""
        pinned = f" {size(self.pinned)} of it are pinned." if self.pinned else ""
        if self.disk:
            way += "free some space there, or lower store.keep_free"
            return (
                f"No room for {size(self.size)}: {size(self.free)} free in {self.directory}, where"
                f" store.keep_free keeps {size(self.keep_free)}; {size(self.used)} are state."
                f"{pinned} {way[0].upper()}{way[1:]}."
            )
        way += "raise store.quota"
        return (
            f"No room for {size(self.size)}: {size(self.used)} of store.quota ="
            f" {size(self.quota)} are in use.{pinned} {way[0].upper()}{way[1:]}."
        )


def disk_failure(error: OSError, directory: Path) -> str:
    """Why a file could not be written there, and the way out."""
    why = error.strerror or repr(error)
    if error.errno == errno.EROFS:
        return f"{why}: {directory}. Make it writable again."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{why}: {free_in(directory)}. Free some space there."
    return f"{why}: {directory}. Look whether that disk is well (dmesg)."


def is_full(directory: Path) -> bool:
    """SQLite calls it an input or output error, too, where its shared memory finds no room."""
    try:
        return shutil.disk_usage(directory).free < _NOTHING
    except OSError:
        return False


def free_in(directory: Path) -> str:
    """`1.2 GiB free in /x`; of the nearest directory there is. Never raises."""
    for place in (directory, *directory.parents):
        try:
            return f"{size(shutil.disk_usage(place).free)} free in {directory}"
        except FileNotFoundError:
            continue
        except OSError:
            break
    return f"{directory} cannot be looked at"


def size(count: int) -> str:
    """Bytes as people read them."""
    return str(naturalsize(count, binary=True))


def database_hint(error: BaseException | None, path: Path) -> str:
    """The way out where a disk, not SQLite, is at fault; else ""."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    folder = path.parent
    of_disk = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    if code == sqlite3.SQLITE_FULL or (code in of_disk and is_full(folder)):
        return f"{free_in(folder)}. Free some space there."
    if code == sqlite3.SQLITE_READONLY:
        return f"Make {folder} writable again: it may be mounted read-only."
    if code in of_disk:
        return f"{free_in(folder)}. Look whether that disk is well (dmesg)."
    return ""
