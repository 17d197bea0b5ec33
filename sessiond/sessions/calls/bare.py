"""Llama 3 and older Mistral: the whole reply is JSON, one call or a list of them."""

from __future__ import annotations

from json import JSONDecoder

from sessiond.sessions.calls.call import InlineCall, Taken, described

_MARKS = ("<|python_tag|>", "[TOOL_CALLS]")
_BETWEEN = " \t\r\n;,"
_DECODER = JSONDecoder()


def take(text: str) -> Taken | None:
    said = text.strip()
    for mark in _MARKS:
        said = said.removeprefix(mark).lstrip()
    if not said.startswith(("{", "[")):
        return None
    calls = calls_of(said)
    return ("", calls) if calls else None


def calls_of(text: str) -> tuple[InlineCall, ...] | None:
    """Of JSON values one behind the other; None if any of them is not a call."""
    calls: list[InlineCall] = []
    at = 0
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        for one in value if isinstance(value, list) else [value]:
            known = described(one)
            if known is None:
                return None
            calls.append(known)
        while at < len(text) and text[at] in _BETWEEN:
            at += 1
    return tuple(calls)
