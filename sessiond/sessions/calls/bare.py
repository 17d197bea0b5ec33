"""Llama 3 and many others: the whole reply is JSON, one call or a list of them."""

from __future__ import annotations

import re
from json import JSONDecoder

from sessiond.sessions.calls.call import InlineCall, all_of, described
from sessiond.sessions.calls.ends import JsonSeries
from sessiond.sessions.calls.way import Verdict, Way

MARK = "<|python_tag|>"
_BETWEEN = " \t\r\n;,"
_DECODER = JSONDecoder(strict=False)
_KEY = r'"(?:name|arguments|parameters|type|id)"'
_BEGINS = re.compile(rf"(?:\[\s*+)?+\{{\s*+{_KEY}\s*+:")
_HEAD = 64
"""Characters that show whether JSON can be a call."""


class _Whole:
    """Other JSON is let go by its first key."""

    def __init__(self) -> None:
        self._series = JsonSeries(whole=True)
        self._head: str | None = ""

    def feed(self, text: str) -> Verdict | None:
        if self._head is not None:
            before = len(self._head)
            self._head = (self._head + text)[:_HEAD]
            known = _BEGINS.match(self._head)
            if known is None and len(self._head) == _HEAD:
                return Verdict(False, _HEAD - before)
            if known is None and (at := _parts(self._head)) is not None:
                return Verdict(False, at - before)
            if known is not None:
                self._head = None
        return self._series.feed(text)

    def close(self) -> bool:
        return self._series.close()


def _parts(head: str) -> int | None:
    """Where a first key that no call has has ended."""
    match = re.match(r'(?:\[\s*+)?+(?:\{\s*+(?:"[^"\\]*+["\\]|[^"\s])|[^\s{\[])', head)
    if match is None or re.fullmatch(rf"(?:\[\s*+)?+\{{\s*+{_KEY}", match[0]):
        return None
    return match.end()


def calls_of(text: str) -> tuple[InlineCall, ...] | None:
    """Of JSON values one behind the other; None if any of them is not a call."""
    calls: list[InlineCall | None] = []
    at = 0
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        calls += map(described, value if isinstance(value, list) else [value])
        while at < len(text) and text[at] in _BETWEEN:
            at += 1
    return all_of(calls)


def _take(text: str) -> tuple[InlineCall, ...] | None:
    return calls_of(text.strip().removeprefix(MARK).strip())


BARE = Way("bare", lambda _: _Whole(), _take, begins="{[")
MARKED = Way("python_tag", lambda _: JsonSeries(whole=False), _take, marks=(MARK,))
