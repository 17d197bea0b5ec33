"""Gemma and small Llamas: Python calls, in a block ```tool_code, or as the list that is all."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence

from sessiond.sessions.calls.call import InlineCall, Taken, call

_BLOCK = re.compile(r"```tool_(?:code|call)\s*\n(.*?)(?:\n```|\Z)", re.DOTALL)
_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\(.*\)\s*\]", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_PRINT = "print"
LONGEST = 50_000
"""Characters of calls; parsing them as Python takes long."""


def take(text: str) -> Taken | None:
    said = text.strip()
    if _LIST.fullmatch(said):
        calls = _calls(said)
        return ("", calls) if calls else None
    if "```tool_" not in text:
        return None
    taken: list[InlineCall] = []

    def found(match: re.Match[str]) -> str:
        calls = _calls(match[1])
        taken.extend(calls or ())
        return "" if calls else match[0]

    rest = _BLOCK.sub(found, text)
    return (rest, tuple(taken)) if taken else None


def _calls(source: str) -> tuple[InlineCall, ...] | None:
    """None where anything else than calls with plain values by name is in it, or far too much."""
    if len(source) > LONGEST:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls = [_call(node) for node in _expressions(body)]
    known = tuple(one for one in calls if one is not None)
    return known if len(known) == len(calls) else None


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
    except (ValueError, TypeError, RecursionError):
        return None
