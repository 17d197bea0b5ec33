"""The container of an export: a plain tar, of which every byte that no member has is determined.

So what is not as it was written is refused, whatever another reader of tars would make of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from tarfile import BLOCKSIZE, GNU_FORMAT, TarError, TarInfo
from typing import BinaryIO

from sessiond.errors import InvalidExport

END = bytes(2 * BLOCKSIZE)
CUT = "The file is cut off."


@dataclass(frozen=True, slots=True)
class Place:
    """Where the content of a member is: `bytes` from `offset` on."""

    name: str
    offset: int
    bytes: int


def opening(name: str, size: int) -> bytes:
    """What stands before `size` bytes of content. Nobody's file, of no time, for its owner only."""
    member = TarInfo(name)
    member.size, member.mode = size, 0o600
    return member.tobuf(GNU_FORMAT, "ascii", "strict")


def closing(size: int) -> bytes:
    """What stands behind them."""
    return bytes(-size % BLOCKSIZE)


def members(file: BinaryIO) -> Iterator[Place]:
    """In order; each is all there. Raises InvalidExport where anything else than members and an end
    is found. The caller may move the file's position.
    """
    length, at = file.seek(0, os.SEEK_END), 0
    while (block := read_at(file, at, BLOCKSIZE)) != END[:BLOCKSIZE]:
        place = _opened(block, at + BLOCKSIZE)
        padding = closing(place.bytes)
        at = place.offset + place.bytes + len(padding)
        if at > length:
            raise InvalidExport(CUT)
        if read_at(file, at - len(padding), len(padding)) != padding:
            raise InvalidExport(f"There is something behind the end of {place.name}.")
        yield place
    if length - at < len(END):
        raise InvalidExport(CUT)
    if length - at > len(END) or read_at(file, at, len(END)) != END:
        raise InvalidExport("There is something behind the end.")


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Raises InvalidExport where the file ends before."""
    file.seek(offset)
    found = file.read(size)
    if len(found) < size:
        raise InvalidExport(CUT)
    return found


def _opened(block: bytes, offset: int) -> Place:
    try:
        member = TarInfo.frombuf(block, "ascii", "strict")
        same = member.size >= 0 and opening(member.name, member.size) == block
    except (TarError, ValueError) as error:
        what = "What should be the header of a member is none."
        raise InvalidExport(what if offset else "This is no file of sessiond export.") from error
    if not same:
        raise InvalidExport("A member is no plain file, or its header was altered.")
    return Place(member.name, offset, member.size)
