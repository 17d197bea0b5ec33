"""Sizes, shares and durations as people write them: `8GiB`, `20%`, `1h30m`.

The parsers raise ValueError with a sentence that says what would be right. The formatters give
text that parses back to the same value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_BINARY = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES = {name.lower(): scale for name, scale in {"B": 1, **_DECIMAL, **_BINARY}.items()}
_LETTERS = {"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)

_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile(
    "".join(rf"(?:(\d+(?:\.\d+)?)\s*{unit}\s*)?" for unit in _MILLISECONDS), re.ASCII
)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of something measured when the daemon starts, in percent: 0 to 100."""

    percent: float

    def of(self, total: int) -> int:
        """Bytes, rounded down."""
        return int(total * Decimal(repr(self.percent)) / 100)

    def __str__(self) -> str:
        return f"{Decimal(repr(self.percent)).normalize():f}%"


def parse_size(text: str | int) -> int:
    """Bytes. A bare number counts bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        return _not_negative(text)
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f'{text!r} is not a size: write bytes, or a size like "8GiB" or "32MiB"')
    number, unit = match.groups()
    if unit.lower() in _LETTERS:
        right = f"{number}{_LETTERS[unit.lower()]}"
        raise ValueError(f'{text!r} is not a size: did you mean "{right}"?')
    scale = _SIZES.get(unit.lower() or "b")
    if scale is None:
        raise ValueError(f"{text!r} has no unit of size: use {', '.join((*_BINARY, *_DECIMAL))}")
    return int(Decimal(number) * scale)


def format_size(size: int) -> str:
    """Exact: the largest binary unit that divides `size` bytes, else plain bytes."""
    for name, scale in reversed(_BINARY.items()):
        if size and size % scale == 0:
            return f"{size // scale}{name}"
    return str(size)


def parse_share(text: str) -> Share:
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'{text!r} is not a share: write a number and a percent sign, like "20%"')
    percent = float(match[1])
    if percent > 100:
        raise ValueError(f"{text!r} is more than everything: a share is at most 100%")
    return Share(percent)


def parse_size_or_share(text: str | int) -> int | Share:
    """Bytes, or a Share where the text ends in a percent sign."""
    if isinstance(text, str) and text.rstrip().endswith("%"):
        return parse_share(text)
    return parse_size(text)


def parse_duration(text: str | int) -> float:
    """Seconds. `d`, `h`, `m`, `s` and `ms`, largest first; only 0 may stand without a unit."""
    stripped = str(text).strip()
    if stripped == "0":
        return 0.0
    match = _DURATION.fullmatch(stripped)
    if match is None or not stripped:
        raise ValueError(_not_a_duration(stripped))
    parts = zip(match.groups(), _MILLISECONDS.values(), strict=True)
    return float(sum(Decimal(number) * scale for number, scale in parts if number) / 1000)


def format_duration(seconds: float) -> str:
    """Exact to the millisecond."""
    rest, parts = round(seconds * 1000), []
    for unit, scale in _MILLISECONDS.items():
        count, rest = divmod(rest, scale)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"


def _not_negative(size: int) -> int:
    if size < 0:
        raise ValueError(f"{size} is negative: a size counts bytes from 0 up")
    return size


def _not_a_duration(text: str) -> str:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return f'"{text}" has no unit of time: did you mean "{text}s"?'
    return f'{text!r} is not a duration: write it like "30s", "10m", "1h30m" or "0"'
