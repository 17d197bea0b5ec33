"""What may change in a front without being a change: clocks, dates, ids, or a user's patterns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from re import Pattern
from time import thread_time

import regex

from sessiond.errors import InvalidRequest
from sessiond.sessions.cause import VOLATILE

PATTERNS, PATTERN_LENGTH = 32, 500
TIMEOUT_S = 0.25
"""Of processor time for all given patterns of one request, since everybody waits for them. One
search is cut off earlier while the model's threads work: `regex` counts those of all threads.
"""
BUILT_IN: dict[str, Pattern[str]] = {
    "clock": VOLATILE["clock"],
    "date": VOLATILE["date"],
    "id": VOLATILE["identifier"],
}
REPEATS = 10_000
_COUNTED = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_ESCAPED = re.compile(r"\\(?:[pPN]\{[^}]*\}|.)", re.DOTALL)
_UNBOUNDED = {
    "recursion": re.compile(r"\(\?(?:R|&|P>|[+-]?\d)"),
    "fuzzy matching": re.compile(r"\{(?=[^{}]*[eids])[^{}]*\}"),
    "the flags b, e and p": re.compile(r"\(\?[A-Za-z01]*[bep][A-Za-z01]*[-:)]"),
}
"""What takes long between two looks at the clock, or always."""
_SLOT = "\x00"
_SHOWN = 60


class SlowPattern(InvalidRequest):
    """A pattern took too long. `spent` is whether it had all the time there is for one request."""

    def __init__(self, name: str, spent: bool) -> None:
        super().__init__(
            f"A pattern of pinned_front takes too long on this system prompt: {shown(name)}",
            hint="Write it so that no part of it can match the same text in several ways.",
            param="pinned_front",
        )
        self.name = name
        self.spent = spent


class Volatility:
    """Of "clock", "date", "id" and regular expressions, each of what those before it left."""

    def __init__(self, names: Sequence[str]) -> None:
        """Raises InvalidRequest naming `pinned_front`."""
        if len(names) > PATTERNS:
            raise _invalid(f"pinned_front has {len(names)} patterns.", f"Give at most {PATTERNS}.")
        self.names = tuple(names)
        self._left_s = TIMEOUT_S
        self._given = {name: _compiled(name) for name in names if name not in BUILT_IN}

    def mask(self, text: str) -> str:
        """The text without what may change. Raises SlowPattern."""
        for name in self.names:
            built_in = BUILT_IN.get(name)
            text = built_in.sub(_SLOT, text) if built_in else self._without(name, text)
        return text

    def _without(self, name: str, text: str) -> str:
        if self._left_s <= 0:
            raise SlowPattern(name, spent=True)
        began = thread_time()
        try:
            return self._given[name].sub(_SLOT, text, timeout=self._left_s)
        except (TimeoutError, MemoryError) as error:
            took = thread_time() - began
            spent = took > self._left_s / 2 or isinstance(error, MemoryError)
            raise SlowPattern(name, spent) from error
        finally:
            self._left_s -= thread_time() - began


@lru_cache(maxsize=256)
def _compiled(name: str) -> regex.Pattern[str]:
    if not name or len(name) > PATTERN_LENGTH:
        raise _invalid(
            "A pattern of pinned_front is empty or too long.",
            f"Use clock, date, id, or a pattern of 1 to {PATTERN_LENGTH} characters.",
        )
    if _repeats(name) > REPEATS:
        raise _invalid(
            f"A pattern of pinned_front repeats its parts too often: {shown(name)}",
            f"Its counts in braces may multiply to {REPEATS} at most.",
        )
    plain = _ESCAPED.sub("", name)
    if found := [what for what, how in _UNBOUNDED.items() if how.search(plain)]:
        raise _invalid(
            f"A pattern of pinned_front uses {found[0]}: {shown(name)}",
            "Leave that out; before a brace that is meant as one goes a backslash.",
        )
    try:
        return regex.compile(name, regex.MULTILINE)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise _invalid(
            f"A pattern of pinned_front is not a regular expression: {shown(name)} ({error})",
            "Use clock, date, id, or a regular expression.",
        ) from error


def _repeats(name: str) -> int:
    """An upper bound: `regex` writes repeated parts out when it compiles them."""
    counts = (max(map(int, filter(None, found)), default=1) for found in _COUNTED.findall(name))
    return math.prod(max(1, count) for count in counts)


def _invalid(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, param="pinned_front")


def shown(name: str) -> str:
    return name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…"
