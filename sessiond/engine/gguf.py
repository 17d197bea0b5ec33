"""The header of a GGUF: keys, values and the list of tensors, of a file that nobody vouches for.

Own code rather than the `gguf` package: that maps the whole file, makes an array for every string
of the vocabulary (seconds for a large one) and believes every count in it. Here all is bounded, no
weight is read, and long arrays are passed over.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sessiond.errors import SessiondError

Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]

MOST_BYTES = 64 << 20
"""Of a header: the largest known vocabularies take 20 MiB."""
MOST_KEYS = 1 << 16
MOST_TENSORS = 1 << 16
LONGEST_KEY = 1 << 16
LONGEST_TEXT = 16 << 20
LONGEST_ARRAY = 1 << 24
KEPT_ARRAY = 4096
"""Longer arrays are vocabularies: they are passed over."""
KEPT_ENTRIES = 100_000
"""Of all arrays; what comes after so many is passed over, too."""
_DIMENSIONS = 4
_CHUNK = 1 << 18
_VERSIONS = (2, 3)

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"} | {
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _ARRAY = 8, 9
_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
"""ggml's number of a tensor type to values and bytes of one block of it."""


class BrokenGguf(SessiondError):
    """The file is no GGUF, is cut off, or says of itself what cannot be."""

    code, status = "broken_gguf", 422


@dataclass(frozen=True, slots=True)
class Tensor:
    """`type` is ggml's number. `offset` in bytes from the beginning of the data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """0 for a type that is not known here."""
        values, size = _BLOCKS.get(self.type, (1, 0))
        return self.values // values * size


@dataclass(frozen=True, slots=True)
class Header:
    """`values` without arrays of more than KEPT_ARRAY entries, or past KEPT_ENTRIES. `data` is
    where the weights begin, `size` the length of the file, both in bytes.
    """

    values: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    data: int
    size: int

    @property
    def missing(self) -> int:
        """Bytes by which the file is shorter than its tensors need."""
        ends = (tensor.offset + tensor.bytes for tensor in self.tensors)
        return max(0, self.data + max(ends, default=0) - self.size)


def open_regular(path: Path) -> BinaryIO:
    """To be read; never waits, as a pipe would. Raises BrokenGguf for what is no regular file,
    OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise BrokenGguf("it is no regular file")
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_header(path: Path) -> Header:
    """Reads no weights, at most MOST_BYTES. Raises BrokenGguf, OSError."""
    with open_regular(path) as file:
        cursor = _Cursor(file)
        try:
            return _header(cursor, os.fstat(file.fileno()).st_size)
        except (UnicodeDecodeError, struct.error, OverflowError) as error:
            raise BrokenGguf(f"its header cannot be read: {error}") from error


def _header(cursor: _Cursor, size: int) -> Header:
    if cursor.take(4) != b"GGUF":
        raise BrokenGguf("it does not begin with GGUF")
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise BrokenGguf(f"GGUF version {version} is not known here")
    tensors = _bounded(cursor.number("Q"), MOST_TENSORS, "tensors")
    keys = _bounded(cursor.number("Q"), MOST_KEYS, "keys")
    values: dict[str, Value] = {}
    for _ in range(keys):
        key = cursor.text(LONGEST_KEY)
        if key in values:
            raise BrokenGguf(f"it has the key {key[:60]!r} twice")
        value = _value(cursor, cursor.number("I"))
        if value is not None:
            values[key] = value
    listed = tuple(_tensor(cursor) for _ in range(tensors))
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 16:
        raise BrokenGguf(f"its alignment is {alignment!r}")
    return Header(values, listed, -(-cursor.position // alignment) * alignment, size)


def _value(cursor: _Cursor, kind: int) -> Value | None:
    """None for an array that is passed over."""
    if kind == _ARRAY:
        return _array(cursor)
    return cursor.text(LONGEST_TEXT) if kind == _TEXT else cursor.number(_number(kind))


def _array(cursor: _Cursor) -> tuple[Scalar, ...] | None:
    kind, length = cursor.number("I"), cursor.number("Q")
    _bounded(length, LONGEST_ARRAY, "entries in an array")
    if kind == _ARRAY:
        raise BrokenGguf("it has arrays in arrays")
    if cursor.keeps(length):
        if kind == _TEXT:
            return tuple(cursor.text(LONGEST_TEXT) for _ in range(length))
        return cursor.numbers(_number(kind), length)
    if kind == _TEXT:
        cursor.skip_texts(length)
    else:
        cursor.skip(length * struct.calcsize(f"<{_number(kind)}"))
    return None


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text(LONGEST_KEY)
    dimensions = _bounded(cursor.number("I"), _DIMENSIONS, "dimensions of a tensor")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))
    return Tensor(name, shape, cursor.number("I"), cursor.number("Q"))


def _number(kind: int) -> str:
    if kind not in _NUMBERS:
        raise BrokenGguf(f"it has a value of the unknown type {kind}")
    return _NUMBERS[kind]


def _bounded(count: int, most: int, what: str) -> int:
    if count > most:
        raise BrokenGguf(f"it claims {count:,} {what}, more than {most:,}")
    return count


class _Cursor:
    """Reads on in a file, little-endian. Never holds more than a chunk and one value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = b""
        self._at = 0
        self._before = 0
        self._room = KEPT_ENTRIES

    @property
    def position(self) -> int:
        return self._before + self._at

    def take(self, size: int) -> bytes:
        self._need(size)
        taken = self._buffer[self._at : self._at + size]
        self._at += size
        return taken

    def number(self, code: str) -> int:
        """Also a float or a truth value, where `code` says so."""
        found = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]
        return found  # type: ignore[no-any-return]

    def numbers(self, code: str, length: int) -> tuple[Scalar, ...]:
        read = struct.Struct(f"<{length}{code}")
        return read.unpack(self.take(read.size))

    def keeps(self, entries: int) -> bool:
        """Whether an array of so many is kept; it counts as kept from then on."""
        kept = entries <= min(KEPT_ARRAY, self._room)
        self._room -= entries if kept else 0
        return kept

    def text(self, longest: int) -> str:
        return self.take(_bounded(self.number("Q"), longest, "bytes in a text")).decode()

    def skip(self, size: int) -> None:
        while size > 0:
            step = min(size, _CHUNK)
            self.take(step)
            size -= step

    def skip_texts(self, count: int) -> None:
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if self._at + 8 > len(self._buffer):
                self._need(8)
            (length,) = unpack(self._buffer, self._at)
            self._at += 8
            if self._at + length > len(self._buffer):
                self.skip(_bounded(length, LONGEST_TEXT, "bytes in a text"))
            else:
                self._at += length

    def _need(self, size: int) -> None:
        have = len(self._buffer) - self._at
        if have >= size:
            return
        if self.position + size > MOST_BYTES:
            raise BrokenGguf(f"its header is longer than {MOST_BYTES >> 20} MiB")
        self._before += self._at
        self._buffer = self._buffer[self._at :] + self._file.read(max(_CHUNK, size - have))
        self._at = 0
        if len(self._buffer) < size:
            raise BrokenGguf("it is cut off within its header")
