"""Gemma and small Llamas: Python calls, in a block ```tool_code, or as the list that is all."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence

from sessiond.sessions.calls.bare import calls_of
from sessiond.sessions.calls.call import InlineCall, all_of, call
from sessiond.sessions.calls.ends import Through
from sessiond.sessions.calls.way import Verdict, Way

MARKS = ("```tool_code", "```tool_call")
_FENCE = "\n```"
_LIST = re.compile(r"\[\s*+[A-Za-z_][\w.]*+\(")
_NO_LIST = re.compile(r"\[\s*+(?:[^A-Za-z_\s]|[A-Za-z_][\w.]*+[^\w.(])")
_HEAD = 64
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_PRINT = "print"
LONGEST = 50_000
"""Characters of calls; parsing them as Python takes long."""


class _List:
    """Held to the end: a bracket inside a string is no end, and nothing may follow."""

    def __init__(self) -> None:
        self._head: str | None = ""
        self._length = 0

    def feed(self, text: str) -> Verdict | None:
        before = self._length
        self._length += len(text)
        if self._head is not None:
            self._head = (self._head + text)[:_HEAD]
            if match := _NO_LIST.match(self._head):
                return Verdict(False, match.end() - before)
            if _LIST.match(self._head):
                self._head = None
            elif len(self._head) == _HEAD:
                return Verdict(False, _HEAD - before)
        return Verdict(False, LONGEST - before) if self._length > LONGEST else None

    def close(self) -> bool:
        return self._head is None


def _take_block(text: str) -> tuple[InlineCall, ...] | None:
    source = text[len(MARKS[0]) :].removesuffix("```").strip()
    return calls_of(source) if source.startswith(("{", "[{")) else _calls(source)


def _take_list(text: str) -> tuple[InlineCall, ...] | None:
    return _calls(text.strip())


def _calls(source: str) -> tuple[InlineCall, ...] | None:
    """None where anything else than calls with plain values by name is in it, or far too much."""
    if len(source) > LONGEST:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return all_of([_call(node) for node in _expressions(body)])


def _expressions(body: Sequence[ast.stmt]) -> list[ast.expr | None]:
    found: list[ast.expr | None] = []
    for statement in body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        found += value.elts if isinstance(value, ast.List) else [value]
    return found


def _call(node: ast.expr | None) -> InlineCall | None:
    if not isinstance(node, ast.Call):
        return None
    try:
        name = ast.unparse(node.func)
        given = {one.arg: ast.literal_eval(one.value) for one in node.keywords}
        if name == _PRINT and len(node.args) == 1 and not given:
            return _call(node.args[0])
        plain = _NAME.fullmatch(name) and not node.args and None not in given
        return call(name, given) if plain else None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


FENCED = Way(
    "fenced",
    lambda _: Through(_FENCE, must=False, longest=LONGEST),
    _take_block,
    marks=MARKS,
    cost=len,
)
LISTED = Way("listed", lambda _: _List(), _take_list, begins="[", cost=len)
