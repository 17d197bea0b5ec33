"""FunctionGemma and Gemma 4: call:name{key:value,…} between marks, strings between marks too."""

from __future__ import annotations

import json
import re

from sessiond.sessions.calls.call import InlineCall, all_of, call
from sessiond.sessions.calls.ends import Through
from sessiond.sessions.calls.way import Way

MARKS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
_QUOTES = ('<|"|>', "<escape>")
_HEAD = re.compile(r"\s*+call:([\w./-]++)\s*+(?=\{)")
_KEY = re.compile(r"[^\s:,{}\[\]\"<]++(?=\s*+:)")
_WORD = re.compile(r"[^,{}\[\]\"<]++")
_SPACES = re.compile(r"\s*+")
_DEEPEST = 64
_JSON = json.JSONDecoder(strict=False)


class _Text:
    """Raises ValueError where the text is something else."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at
        self._deep = 0

    def whole(self) -> object:
        value = self._value()
        if self._at != len(self._text):
            raise ValueError
        return value

    def _value(self) -> object:
        self._deep += 1
        if self._deep > _DEEPEST:
            raise ValueError
        self._skip()
        value = self._object() if self._is("{") else self._list() if self._is("[") else self._one()
        self._skip()
        self._deep -= 1
        return value

    def _object(self) -> dict[str, object]:
        fields: dict[str, object] = {}
        self._skip()
        while not self._is("}"):
            key = self._string()
            if key is None:
                key = self._match(_KEY)
            self._skip()
            if not self._is(":"):
                raise ValueError
            fields[key] = self._value()
            self._separated("}")
        return fields

    def _list(self) -> list[object]:
        items: list[object] = []
        self._skip()
        while not self._is("]"):
            items.append(self._value())
            self._separated("]")
        return items

    def _one(self) -> object:
        text = self._string()
        if text is not None:
            return text
        word = self._match(_WORD).strip()
        try:
            value: object = json.loads(word)
        except ValueError:
            return word
        return value

    def _string(self) -> str | None:
        if self._text.startswith('"', self._at):
            value, self._at = _JSON.raw_decode(self._text, self._at)
            return str(value)
        for quote in _QUOTES:
            if self._is(quote):
                end = self._text.index(quote, self._at)
                text = self._text[self._at : end]
                self._at = end + len(quote)
                return text
        return None

    def _separated(self, end: str) -> None:
        self._skip()
        if not self._is(",") and not self._text.startswith(end, self._at):
            raise ValueError
        self._skip()

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError
        self._at = match.end()
        return match[0]

    def _skip(self) -> None:
        self._match(_SPACES)

    def _is(self, mark: str) -> bool:
        found = self._text.startswith(mark, self._at)
        if found:
            self._at += len(mark)
        return found


def _take(text: str) -> tuple[InlineCall, ...] | None:
    mark = next(mark for mark in MARKS if text.startswith(mark))
    inside = text.removeprefix(mark).removesuffix(MARKS[mark])
    head = _HEAD.match(inside)
    if head is None:
        return None
    try:
        return all_of([call(head[1], _Text(inside, head.end()).whole())])
    except ValueError:
        return None


def _cost(text: str) -> int:
    return sum(map(text.count, ",:[{"))


BRACES = Way(
    "braces",
    lambda mark: Through(MARKS[mark], must=False),
    _take,
    marks=tuple(MARKS),
    cost=_cost,
)
