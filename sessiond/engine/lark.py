"""Constraints written as llguidance's dialect of Lark, for one vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from sessiond.engine.constraint import (
    Constraint,
    Either,
    Form,
    Json,
    Lark,
    Literal,
    Maybe,
    Repeat,
    Row,
    Space,
    Words,
)

_HEAD = '%llguidance {"no_forcing": true}\n'
"""Whatever tokens spell what is allowed may be drawn; none are chosen without the model."""
_COMPACT = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "coerce_one_of": True,
}
"""On one line: models that may choose put blanks and new lines where nobody does, and go on.
No grammar can say that of several forms only one fits: of `oneOf` at least one does.
"""
_DIALECTS = ("http://json-schema.org/draft-", "https://json-schema.org/draft/")
_ANY = "/(?s:.*)/"


def lark(constraint: Constraint, control: Mapping[str, int]) -> str:
    """`control` are the texts of the vocabulary's control tokens; only they write these."""
    form = constraint.form
    if isinstance(form, Lark):
        return _HEAD + form.text
    writer = _Writer(control)
    start = writer.expression(form)
    return "".join([_HEAD, f"start: {start}\n", *writer.rules()])


class _Writer:
    def __init__(self, control: Mapping[str, int]) -> None:
        self._control = control
        longest_first = sorted(control, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._rules: dict[str, str] = {}

    def rules(self) -> list[str]:
        return [f"{name}{body}\n" for body, name in self._rules.items()]

    def expression(self, form: Form) -> str:
        match form:
            case Literal(text):
                return self._literal(text)
            case Words(end):
                return self._words(end)
            case Space():
                return r"/[ \t\r\n]{0,8}/"
            case Json():
                return self._rule(f"%json {_schema(form)}")
            case Row(forms):
                return " ".join(filter(None, map(self.expression, forms)))
            case Either(forms):
                return self._rule(" | ".join(self.expression(each) or '""' for each in forms))
            case Maybe(inner):
                return f"{self._rule(self.expression(inner))}?"
            case Repeat(inner, most):
                return self._rule(self.expression(inner)) + f"{{0,{most}}}"

    def _rule(self, body: str, options: str = "") -> str:
        """Its name; what is written the same is one rule."""
        return self._rules.setdefault(f"{options}: {body}", f"r{len(self._rules)}")

    def _words(self, end: str) -> str:
        first, *rest = self._pieces(end)
        if first in self._control:
            return f"{_ANY} {self._literal(end)}"
        words = self._rule(_ANY, f"[suffix={_quoted(first)}]")
        return " ".join([words, *map(self._piece, rest)])

    def _literal(self, text: str) -> str:
        return " ".join(map(self._piece, self._pieces(text)))

    def _pieces(self, text: str) -> list[str]:
        pieces = self._split.split(text) if self._control else [text]
        return [piece for piece in pieces if piece]

    def _piece(self, piece: str) -> str:
        token = self._control.get(piece)
        return _quoted(piece) if token is None else f"<[{token}]>"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(form: Json) -> str:
    """With how it is to be written; what the client says of that is ignored."""
    schema = json.loads(form.schema)
    if isinstance(schema, dict):
        if not str(schema.get("$schema")).startswith(_DIALECTS):
            schema.pop("$schema", None)
        schema["x-guidance"] = _COMPACT | {"lenient": form.lenient}
    return json.dumps(schema, ensure_ascii=False)
