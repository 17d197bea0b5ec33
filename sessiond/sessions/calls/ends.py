"""Where the parts of a call end, found while they are written. Every character is read once."""

from __future__ import annotations

import re

from sessiond.sessions.calls.way import Verdict

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
MOST_VALUES = 1_000
"""In a series; one with more is no call."""


def spaces(text: str, at: int = 0) -> int:
    """Where white space that begins at `at` ends."""
    return len(text) - len(text[at:].lstrip())


class JsonValue:
    """An object or a list; white space may stand before it. What is in it is not checked."""

    def __init__(self, begins: str = "{[") -> None:
        self._begins = begins
        self._depth = 0
        self._string = False
        self._escaped = False

    def feed(self, text: str) -> Verdict | None:
        at = 0
        if not self._depth:
            at = spaces(text)
            if at == len(text):
                return None
            if text[at] not in self._begins:
                return Verdict(False, at + 1)
        while True:
            found = self._next(text, at)
            if found is None:
                return None
            at = found
            if not self._depth:
                return Verdict(True, at)

    def close(self) -> bool:
        return False

    def _next(self, text: str, at: int) -> int | None:
        """Behind the next character that counts."""
        if self._escaped:
            if at == len(text):
                return None
            self._escaped, at = False, at + 1
        match = (_INSIDE if self._string else _OUTSIDE).search(text, at)
        if match is None:
            return None
        mark = match[0]
        if mark == '"':
            self._string = not self._string
        elif mark == "\\":
            self._escaped = True
        else:
            self._depth += 1 if mark in "{[" else -1
        return match.end()


class JsonSeries:
    """JSON values one behind the other. `whole`: nothing else may follow."""

    def __init__(self, whole: bool, between: str = " \t\r\n;,") -> None:
        self._whole = whole
        self._between = between
        self._value: JsonValue | None = JsonValue()
        self._ended = 0

    def feed(self, text: str) -> Verdict | None:
        at = 0
        while at < len(text):
            if self._value is None:
                at = len(text) - len(text[at:].lstrip(self._between))
                if at == len(text):
                    return None
                if text[at] not in "{[":
                    return Verdict(not self._whole, at + self._whole)
                self._value = JsonValue()
            verdict = self._value.feed(text[at:])
            if verdict is None:
                return None
            at += verdict.at
            if not verdict.fits:
                return Verdict(False, at)
            self._value, self._ended = None, self._ended + 1
            if self._ended > MOST_VALUES:
                return Verdict(False, at)
        return None

    def close(self) -> bool:
        return self._ended > 0 and self._value is None


class Through:
    """Up to and with the first of some marks. `must`: a call without it is not whole."""

    def __init__(self, *marks: str, must: bool = True, longest: int | None = None) -> None:
        self._pattern = re.compile("|".join(map(re.escape, marks)))
        self._overlap = max(map(len, marks)) - 1
        self._tail = ""
        self._must = must
        self._left = longest

    def feed(self, text: str) -> Verdict | None:
        seen = self._tail + text
        match = self._pattern.search(seen)
        end = match.end() - len(self._tail) if match else len(text)
        if self._left is not None and end > self._left:
            return Verdict(False, self._left)
        if match:
            return Verdict(True, end)
        self._tail = seen[max(0, len(seen) - self._overlap) :]
        if self._left is not None:
            self._left -= len(text)
        return None

    def close(self) -> bool:
        return not self._must
