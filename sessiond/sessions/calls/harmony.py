"""gpt-oss: a message to a function, on a channel of its own."""

from __future__ import annotations

import re

from sessiond.sessions.calls.call import InlineCall, Taken, call, parsed

_TO = "to=functions."
_START = r"(?:<\|start\|>assistant)?"
_CALL = re.compile(
    rf"{_START}\s{{0,8}}(?:<\|channel\|>(?:commentary|analysis)\s{{0,8}})?+"
    r"to=functions\.([\w./:-]++)\s*+"
    r"(?:<\|channel\|>(?:commentary|analysis)\s*+)?+(?:<\|constrain\|>)?+(?:json|code)?+\s*+"
    r"<\|message\|>(.*?)(?:<\|call\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
_PREAMBLE = re.compile(
    rf"{_START}<\|channel\|>(?:commentary|final)<\|message\|>(.*?)(?:<\|end\|>|<\|return\|>|\Z)",
    re.DOTALL,
)


def take(text: str) -> Taken | None:
    if _TO not in text:
        return None
    calls: list[InlineCall] = []

    def found(match: re.Match[str]) -> str:
        arguments = parsed(match[2])
        if not isinstance(arguments, dict):
            return match[0]
        calls.append(call(match[1], arguments))
        return ""

    rest = _CALL.sub(found, text)
    return (_PREAMBLE.sub(r"\1", rest), tuple(calls)) if calls else None
