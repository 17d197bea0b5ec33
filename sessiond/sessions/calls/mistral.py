"""Mistral: [TOOL_CALLS] and a list of calls, or [TOOL_CALLS]name[ARGS]{…} for each."""

from __future__ import annotations

import re

from sessiond.sessions.calls.bare import calls_of
from sessiond.sessions.calls.call import InlineCall, Taken, call, parsed

MARK = "[TOOL_CALLS]"
_NAMED = re.compile(
    r"\s*+(?P<name>[\w./:-]++)\s*+(?:\[CALL_ID\]\s*+\w*+\s*+)?+(?:\[ARGS\])?+\s*+"
    r"(?P<arguments>\{.*\})\s*",
    re.DOTALL,
)


def take(text: str) -> Taken | None:
    before, mark, after = text.partition(MARK)
    if not mark:
        return None
    calls = calls_of(after.strip()) or _named(after.split(MARK))
    return (before, calls) if calls else None


def _named(pieces: list[str]) -> tuple[InlineCall, ...] | None:
    calls = []
    for piece in pieces:
        match = _NAMED.fullmatch(piece)
        arguments = parsed(match["arguments"]) if match else None
        if match is None or not isinstance(arguments, dict):
            return None
        calls.append(call(match["name"], arguments))
    return tuple(calls)
