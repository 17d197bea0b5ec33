"""gpt-oss: every message has a channel; a call is a message to a function."""

from __future__ import annotations

import re

from sessiond.sessions.calls.call import InlineCall, all_of, call, parsed
from sessiond.sessions.calls.ends import JsonValue
from sessiond.sessions.calls.way import Channel, Reader, Verdict, Way

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
CONTROL = (START, CHANNEL, MESSAGE, "<|constrain|>", "<|end|>")
_FUNCTIONS = "functions."
_TO = f"to={_FUNCTIONS}"
_CHANNELS = {
    "analysis": Channel.THOUGHT,
    "commentary": Channel.SAID,
    "final": Channel.SAID,
}
_LONGEST = 300
"""Characters of a header."""
_HEADER = re.compile(
    r"(?:<\|start\|>(?:assistant)?+)?+\s*+(?:to=(?P<early>[\w./:-]++)\s*+)?+"
    r"(?:<\|channel\|>\s*+(?P<channel>analysis|commentary|final)\s*+)?+"
    r"(?:to=(?P<late>[\w./:-]++)\s*+)?+(?:<\|constrain\|>)?+\s*+(?:json|code)?+\s*+<\|message\|>"
)

_OTHER = re.compile(r"<\|start\|>assistant[^\s<t]")
_CUT_OFF = re.compile(
    r"(?:<\|start\|>\w{0,9})?+(?:<\|channel\|>\w{0,10} ?(?:<\|constrain\|>)?+(?:json|code)?+)?+"
    r"(?:<\|?[a-z]{0,9}\|?)?+\s*+"
)
"""A header that nothing came after. One of a call is text, as all of half a call is."""


class _Message:
    """A header, and the arguments where it is for a function."""

    def __init__(self, mark: str) -> None:
        self._header = mark
        self._inside: Reader | None = None

    def feed(self, text: str) -> Verdict | None:
        if self._inside is not None:
            return self._inside.feed(text)
        before, text = len(self._header), self._header + text
        if other := _OTHER.match(text):
            return Verdict(False, other.end() - before)
        end = text.find(MESSAGE)
        if end < 0 or end > _LONGEST:
            self._header = text
            too_long = len(text) > _LONGEST + len(MESSAGE)
            return Verdict(False, _LONGEST - before) if too_long else None
        end += len(MESSAGE)
        header = _HEADER.fullmatch(text, 0, end)
        if header is None or not _means(header):
            return Verdict(False, end - before)
        if not _to(header):
            return Verdict(True, end - before)
        self._inside = JsonValue("{")
        verdict = self._inside.feed(text[end:])
        return verdict and Verdict(verdict.fits, verdict.at + end - before)

    def close(self) -> bool:
        return self._inside is None


def _to(header: re.Match[str]) -> str:
    return header["early"] or header["late"] or ""


def _means(header: re.Match[str]) -> bool:
    to = _to(header)
    return to.startswith(_FUNCTIONS) if to else header["channel"] is not None


def _take(text: str) -> tuple[InlineCall, ...] | Channel | None:
    header = _HEADER.match(text)
    if header is None:
        return Channel.NOTHING if _CUT_OFF.fullmatch(text) else None
    if to := _to(header):
        return all_of([call(to.removeprefix(_FUNCTIONS), parsed(text[header.end() :]))])
    return _CHANNELS[header["channel"]]


HARMONY = Way(
    "harmony",
    _Message,
    _take,
    marks=(START, CHANNEL, _TO),
    closer="<|call|>",
    channels=True,
    idle=f"{START}assistant",
)
