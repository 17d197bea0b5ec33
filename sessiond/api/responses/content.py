"""The content of items as chat messages have it: parts of text."""

from __future__ import annotations

from typing import Any

from sessiond.api.conversation import note
from sessiond.api.dialect import Json
from sessiond.errors import InvalidRequest, UnsupportedContent
from sessiond.sessions.transcript import TEXT_PARTS


class ContentReader:
    """What the model cannot read becomes a note where the reader is `lenient`, and is counted."""

    def __init__(self) -> None:
        self.lenient = False
        self.replaced = 0

    def parts(self, content: object, where: str) -> list[Json]:
        """Raises InvalidRequest, UnsupportedContent."""
        if isinstance(content, str):
            return [_text(content)]
        if not isinstance(content, list):
            raise InvalidRequest(f"'{where}' must be a string or a list of parts.", param=where)
        return [self._part(part, f"{where}[{index}]") for index, part in enumerate(content)]

    def left_out(self, kind: str) -> str:
        """A note in the place of a whole item."""
        self.replaced += 1
        return f"[{kind} left out: it is not known here]"

    def _part(self, part: Any, where: str) -> Json:
        if isinstance(part, str):
            return _text(part)
        if not isinstance(part, dict):
            raise InvalidRequest(f"'{where}' must be an object.", param=where)
        kind = str(part.get("type"))
        if kind == "refusal":
            return _text(string(part, "refusal", where))
        if kind in TEXT_PARTS:
            return _text(string(part, "text", where))
        if not self.lenient:
            raise UnsupportedContent(
                f"'{where}' is of type {kind!r}.", hint="This model reads text only.", param=where
            )
        self.replaced += 1
        return note(part)


def string(fields: Json, name: str, where: str) -> str:
    """Raises InvalidRequest."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{where}.{name}' must be a string.", param=f"{where}.{name}")
    return value


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
