"""Content blocks of Anthropic's API as parts and calls of OpenAI's; what is wrong is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sessiond.api.conversation import note
from sessiond.api.dialect import Json
from sessiond.errors import InvalidRequest, UnsupportedContent

PREFIX = "toolu_"
"""Anthropic's clients expect calls to be named so; what follows is the call's own id."""


@dataclass(frozen=True, slots=True)
class Block:
    """`where` it stands in the request, as a client would write it."""

    kind: str
    where: str
    fields: Json

    def text(self, name: str) -> str:
        """Raises InvalidRequest where there is none."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            param = f"{self.where}.{name}"
            raise InvalidRequest(f"'{param}' must be a string.", param=param)
        return value


def located(block: object, where: str) -> Block:
    """Raises InvalidRequest for what is no block."""
    if not isinstance(block, dict):
        raise InvalidRequest(f"'{where}' must be an object.", param=where)
    kind = block.get("type")
    if not isinstance(kind, str):
        raise InvalidRequest(f"'{where}.type' must be a string.", param=f"{where}.type")
    return Block(kind, where, block)


class BlockReader:
    """`lenient`: what the model cannot read becomes a note, and counts as `replaced`.

    Raises InvalidRequest, and UnsupportedContent where it is not lenient, with `param`.
    """

    def __init__(self) -> None:
        self.lenient = False
        self.replaced = 0

    def texts(self, content: str | list[Any], where: str) -> str | list[Json]:
        if isinstance(content, str):
            return content
        return [self.text(located(block, f"{where}[{i}]")) for i, block in enumerate(content)]

    def text(self, block: Block) -> Json:
        if block.kind == "text":
            return _part(block.text("text"))
        if block.kind == "document" and (words := _words(block)) is not None:
            return _part(words)
        if not self.lenient:
            raise UnsupportedContent(
                f"'{block.where}' is of type {block.kind!r}.",
                hint="Only text is supported.",
                param=block.where,
            )
        self.replaced += 1
        return note(block.fields)

    def result(self, block: Block) -> Json:
        """What a tool gave back. An error without words is told as one."""
        content, where = block.fields.get("content"), f"{block.where}.content"
        if not content:
            content = "Error" if block.fields.get("is_error") is True else ""
        if not isinstance(content, str | list):
            raise InvalidRequest(f"'{where}' must be a string or a list of blocks.", param=where)
        call = own_id(block.text("tool_use_id"))
        return {"role": "tool", "tool_call_id": call, "content": self.texts(content, where)}

    def call(self, block: Block) -> Json:
        given, where = block.fields.get("input"), f"{block.where}.input"
        if given is not None and not isinstance(given, dict):
            raise InvalidRequest(f"'{where}' must be an object.", param=where)
        function = {"name": block.text("name"), "arguments": given or {}}
        return {"id": own_id(block.text("id")), "type": "function", "function": function}


def own_id(given: str) -> str:
    """The call's id as the template gets it, whatever API it came through."""
    return given.removeprefix(PREFIX)


def _words(document: Block) -> str | None:
    """Those of a document that is nothing but text."""
    source = document.fields.get("source")
    data = source.get("data") if isinstance(source, dict) and source.get("type") == "text" else None
    return data if isinstance(data, str) else None


def _part(text: str) -> Json:
    return {"type": "text", "text": text}
