"""Some texts, looked for in text that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache


class Marks:
    def __init__(self, marks: Iterable[str]) -> None:
        known = sorted(set(marks), key=len, reverse=True)
        firsts = "".join(sorted({mark[0] for mark in known}))
        self._pattern = re.compile("|".join(map(re.escape, known)) if known else r"(?!)")
        self._firsts = re.compile(f"[{re.escape(firsts)}]" if firsts else r"(?!)")
        self._beginnings = {mark[:n] for mark in known for n in range(1, len(mark))}
        self._longest = max(map(len, known), default=1)

    def find(self, text: str) -> re.Match[str] | None:
        """The first one, and of those that begin there the longest."""
        return self._pattern.search(text) if self._firsts.search(text) else None

    def begun(self, text: str) -> int:
        """How much of the end of `text` may be the beginning of one."""
        start = max(0, len(text) - self._longest + 1)
        for match in self._firsts.finditer(text, start):
            if text[match.start() :] in self._beginnings:
                return len(text) - match.start()
        return 0

    def begins(self, text: str) -> str:
        """The one that `text` begins with, or ""."""
        match = self._pattern.match(text)
        return match[0] if match else ""

    def may_begin(self, text: str) -> bool:
        """Whether `text` is the beginning of one, and not all of it."""
        return text in self._beginnings


@cache
def marks_of(marks: tuple[str, ...]) -> Marks:
    return Marks(marks)
