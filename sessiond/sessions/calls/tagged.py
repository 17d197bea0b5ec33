"""Hermes and Qwen: JSON, or functions and parameters, between <tool_call> and </tool_call>."""

from __future__ import annotations

import re
from collections.abc import Callable

from sessiond.sessions.calls.call import InlineCall, all_of, call, described, parsed
from sessiond.sessions.calls.ends import JsonValue, spaces
from sessiond.sessions.calls.way import Reader, Verdict, Way

FRAME, END_OF_FRAME = "<tool_call>", "</tool_call>"
FUNCTION, PARAMETER, END = "<function=", "<parameter=", "</function>"
_LONGEST_NAME = 128
_NAME = re.compile(rf"[^>\s]{{0,{_LONGEST_NAME + 1}}}")
_VALUE_END = r"</parameter>|(?=<parameter=)|(?=</function>\s{0,4}</tool_call>)"
_VALUE = re.compile(_VALUE_END)
_OVERLAP = len("</function>") + 4 + len(END_OF_FRAME) - 1
_FUNCTION = re.compile(r"(?:<tool_call>)?\s*+<function=([^>\s]++)>(.*)</function>\s*+", re.DOTALL)
_PARAMETER = re.compile(rf"<parameter=([^>\s]++)>\n?(.*?)\n?(?:{_VALUE_END})", re.DOTALL)


class _Parameters:
    """Behind "<function=": a name, then JSON or parameters, then </function>."""

    def __init__(self) -> None:
        self._held = ""
        self._json: JsonValue | None = None
        self._step: Callable[[str, int], int | Verdict | None] = self._name

    def feed(self, text: str) -> Verdict | None:
        held, self._held = self._held, ""
        text, before = held + text, len(held)
        at = 0
        while True:
            step = self._step(text, at)
            if isinstance(step, Verdict):
                return Verdict(step.fits, step.at - before)
            if step is None:
                return None
            at = step

    def close(self) -> bool:
        return False

    def _name(self, text: str, at: int) -> int | Verdict | None:
        end = spelled.end() if (spelled := _NAME.match(text, at)) else at
        if end == len(text) and end - at <= _LONGEST_NAME:
            self._held = text[at:]
            return None
        if text[end : end + 1] != ">":
            return Verdict(False, end)
        self._step = self._between
        return end + 1

    def _between(self, text: str, at: int) -> int | Verdict | None:
        at = spaces(text, at)
        near = text[at : at + len(END)]
        if near == END:
            return Verdict(True, at + len(END))
        if near == PARAMETER:
            self._step = self._in_value
            return at + len(near)
        if END.startswith(near) or PARAMETER.startswith(near):
            self._held = near
            return None
        if text[at] != "{":
            return Verdict(False, at + 1)
        self._json, self._step = JsonValue(), self._in_json
        return at

    def _in_value(self, text: str, at: int) -> int | Verdict | None:
        match = _VALUE.search(text, at)
        if match is None:
            self._held = text[max(at, len(text) - _OVERLAP) :]
            return None
        self._step = self._between
        return match.end()

    def _in_json(self, text: str, at: int) -> int | Verdict | None:
        verdict = self._json.feed(text[at:]) if self._json else None
        if verdict is None:
            return None
        self._step = self._between
        return at + verdict.at


class _Framed:
    """Behind <tool_call>."""

    def __init__(self) -> None:
        self._inside: Reader | None = None
        self._held = ""

    def feed(self, text: str) -> Verdict | None:
        if self._inside is not None:
            return self._inside.feed(text)
        before = len(self._held)
        text = self._held + text
        at = spaces(text)
        if FUNCTION.startswith(text[at : at + len(FUNCTION)]):
            if len(text) - at < len(FUNCTION):
                self._held = text[at:]
                return None
            self._inside, at = _Parameters(), at + len(FUNCTION)
        elif text[at] == "{":
            self._inside = JsonValue("{")
        else:
            return Verdict(False, at + 1 - before)
        self._held = ""
        verdict = self._inside.feed(text[at:])
        return verdict and Verdict(verdict.fits, verdict.at + at - before)

    def close(self) -> bool:
        return False


def _take(text: str) -> tuple[InlineCall, ...] | None:
    one = _of_functions(text) if FUNCTION in text[:64] else None
    return all_of([one or described(parsed(text.removeprefix(FRAME)), strict=False)])


def _of_functions(text: str) -> InlineCall | None:
    match = _FUNCTION.fullmatch(text)
    if match is None:
        return None
    given = parsed(match[2])
    if isinstance(given, dict):
        return call(match[1], given)
    # The end stands for what may follow a value that was not ended.
    values = _PARAMETER.findall(f"{match[2]}</function>{END_OF_FRAME}")
    return call(match[1], dict(values), typed=False)


def _reader(mark: str) -> Reader:
    return _Framed() if mark == FRAME else _Parameters()


TAGGED = Way("tagged", _reader, _take, marks=(FRAME, FUNCTION), closer=END_OF_FRAME)
