"""Mistral: [TOOL_CALLS] and a list of calls, or [TOOL_CALLS]name[ARGS]{…} for each."""

from __future__ import annotations

import re

from sessiond.sessions.calls.bare import calls_of
from sessiond.sessions.calls.call import InlineCall, all_of, call, parsed
from sessiond.sessions.calls.ends import JsonSeries, JsonValue, spaces
from sessiond.sessions.calls.way import Reader, Verdict, Way

MARK = "[TOOL_CALLS]"
_LONGEST = 300
"""Characters between the mark and the arguments."""
_HEAD = re.compile(r"\s*+(?P<name>[\w./:-]++)\s*+(?:\[CALL_ID\]\s*+\w*+\s*+)?+(?:\[ARGS\])?+\s*+")


class _Call:
    def __init__(self) -> None:
        self._head = ""
        self._inside: Reader | None = None

    def feed(self, text: str) -> Verdict | None:
        if self._inside is not None:
            return self._inside.feed(text)
        before, text = len(self._head), self._head + text
        start = text.find("{")
        first = text[spaces(text) :][:1]
        if first in ("{", "["):
            start = spaces(text)
            self._inside = JsonValue() if first == "[" else JsonSeries(whole=False)
        elif start < 0 or start > _LONGEST:
            self._head = text
            return Verdict(False, _LONGEST - before) if len(text) > _LONGEST else None
        elif not _HEAD.fullmatch(text, 0, start):
            return Verdict(False, start + 1 - before)
        else:
            self._inside = JsonValue("{")
        verdict = self._inside.feed(text[start:])
        return verdict and Verdict(verdict.fits, verdict.at + start - before)

    def close(self) -> bool:
        return self._inside is not None and self._inside.close()


def _take(text: str) -> tuple[InlineCall, ...] | None:
    after = text.removeprefix(MARK).strip()
    if after.startswith(("[", "{")):
        return calls_of(after)
    head = _HEAD.match(after)
    return all_of([call(head["name"], parsed(after[head.end() :]))]) if head else None


MISTRAL = Way("mistral", lambda _: _Call(), _take, marks=(MARK,))
