"""What may change in a front without being a change: clocks, dates, ids, or a user's patterns."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from re import Pattern
from time import process_time

import regex

from sessiond.errors import InvalidRequest
from sessiond.sessions.cause import VOLATILE

PATTERNS, PATTERN_LENGTH = 32, 500
TIMEOUT_S = 0.25 * min(8, os.cpu_count() or 1)
"""For all given patterns of one request, since everybody waits for them. Of the processor time of
the whole process, as `regex` counts it: the model's threads may be at work beside them.
"""
BUILT_IN: dict[str, Pattern[str]] = {
    "clock": VOLATILE["clock"],
    "date": VOLATILE["date"],
    "id": VOLATILE["identifier"],
}
REPEATS = 10_000
_COUNTED = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_LEAST_S = 0.001
_SLOT = "\x00"
_SHOWN = 60


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
        """The text without what may change. Raises InvalidRequest where a pattern takes too long
        for it.
        """
        for name in self.names:
            built_in = BUILT_IN.get(name)
            text = built_in.sub(_SLOT, text) if built_in else self._without(name, text)
        return text

    def _without(self, name: str, text: str) -> str:
        began = process_time()
        try:
            return self._given[name].sub(_SLOT, text, timeout=max(self._left_s, _LEAST_S))
        except (TimeoutError, MemoryError) as error:
            raise _invalid(
                f"A pattern of pinned_front takes too long on this system prompt: {_shown(name)}",
                "Write it so that no part of it can match the same text in several ways.",
            ) from error
        finally:
            self._left_s -= process_time() - began


@lru_cache(maxsize=256)
def _compiled(name: str) -> regex.Pattern[str]:
    if not name or len(name) > PATTERN_LENGTH:
        raise _invalid(
            "A pattern of pinned_front is empty or too long.",
            f"Use clock, date, id, or a pattern of 1 to {PATTERN_LENGTH} characters.",
        )
    if _repeats(name) > REPEATS:
        raise _invalid(
            f"A pattern of pinned_front repeats its parts too often: {_shown(name)}",
            f"Its counts in braces may multiply to {REPEATS} at most.",
        )
    try:
        return regex.compile(name, regex.MULTILINE)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise _invalid(
            f"A pattern of pinned_front is not a regular expression: {_shown(name)} ({error})",
            "Use clock, date, id, or a regular expression.",
        ) from error


def _repeats(name: str) -> int:
    """An upper bound: `regex` writes repeated parts out when it compiles them."""
    counts = (max(map(int, filter(None, found)), default=1) for found in _COUNTED.findall(name))
    return math.prod(max(1, count) for count in counts)


def _invalid(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, param="pinned_front")


def _shown(name: str) -> str:
    return name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…"
