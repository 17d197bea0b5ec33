"""A request's items as the transcript wants them: the same as through any other API.

All items of one reply are one assistant message, whatever their order and number.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessiond.api.dialect import Json
from sessiond.api.responses.content import ContentReader, string
from sessiond.api.responses.ids import place_of
from sessiond.errors import InvalidRequest, UnsupportedContent
from sessiond.metrics import PARTS_REPLACED
from sessiond.sessions.transcript import ROLES

_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")


def messages_of(items: str | Sequence[Json]) -> list[Json]:
    """As chat requests have them. Parts that the model cannot read become a note up to the last
    item of a reply. Raises InvalidRequest or UnsupportedContent with `param`.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    replied = [index for index, item in enumerate(items) if _of_reply(item)]
    new = replied[-1] + 1 if replied else 0
    reader = _ItemReader()
    for index, item in enumerate(items):
        reader.content.lenient = index < new
        reader.read(item, f"input[{index}]")
    PARTS_REPLACED.inc(reader.content.replaced)
    return reader.messages


def kind_of(item: Json) -> str:
    """An item with a role needs no type; with nothing but an id it is a reference."""
    if isinstance(kind := item.get("type"), str):
        return kind
    if "role" in item:
        return "message"
    return "item_reference" if "id" in item else ""


def _of_reply(item: Json) -> bool:
    kind = kind_of(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind == "reasoning" or kind.endswith("_call")


class _ItemReader:
    def __init__(self) -> None:
        self.content = ContentReader()
        self.messages: list[Json] = []
        self._reply: Json | None = None
        self._response: str | None = None
        self._answered = False

    def read(self, item: Json, where: str) -> None:
        kind = kind_of(item)
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind in _CALLS:
            self._call(item, kind, where)
        elif kind in _RESULTS:
            self._result(item, where)
        else:
            self._unknown(item, kind, where)

    def _message(self, item: Json, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES or role == "tool":
            raise InvalidRequest(
                f"'{where}.role' is {role!r}.",
                hint="Use one of: user, assistant, system, developer.",
                param=f"{where}.role",
            )
        content = self.content.parts(item.get("content"), f"{where}.content")
        if role == "assistant":
            self._part_of_reply(item)["content"] += content
        else:
            self._reply = None
            self.messages.append({"role": role, "content": content})

    def _reasoning(self, item: Json, where: str) -> None:
        """What it says; encrypted content is nothing but a mark that the ledger has it."""
        texts = item.get("content") or item.get("summary") or []
        if not isinstance(texts, list):
            raise InvalidRequest(f"'{where}.content' must be a list.", param=f"{where}.content")
        text = "".join(
            string(one, "text", f"{where}.content[{index}]")
            for index, one in enumerate(texts)
            if isinstance(one, dict)
        )
        if text:
            self._part_of_reply(item)["reasoning_content"] += text

    def _call(self, item: Json, kind: str, where: str) -> None:
        identity, name = string(item, "call_id", where), string(item, "name", where)
        if kind == "custom_tool_call":
            arguments: object = {"input": string(item, "input", where)}
        else:
            arguments = item.get("arguments")
        if not isinstance(arguments, str | dict):
            raise InvalidRequest(
                f"'{where}.arguments' must be a string.", param=f"{where}.arguments"
            )
        function = {"name": name, "arguments": arguments}
        calls: list[Json] = self._part_of_reply(item)["tool_calls"]
        calls.append({"id": identity, "type": "function", "function": function})

    def _result(self, item: Json, where: str) -> None:
        identity = string(item, "call_id", where)
        content = self.content.parts(item.get("output"), f"{where}.output")
        self.messages.append({"role": "tool", "tool_call_id": identity, "content": content})
        self._answered = True

    def _unknown(self, item: Json, kind: str, where: str) -> None:
        if not self.content.lenient:
            raise UnsupportedContent(
                f"'{where}' is of type {kind!r}.",
                hint="Send messages, function calls and their outputs.",
                param=f"{where}.type",
            )
        note = {"type": "text", "text": self.content.left_out(kind or "item")}
        self._part_of_reply(item)["content"].append(note)

    def _part_of_reply(self, item: Json) -> Json:
        """The assistant message that the item belongs to: the one before it, unless results of
        tools or another response's id stand between.
        """
        place = place_of(item.get("id"))
        response = place.response if place else None
        same = response is not None and response == self._response
        other = None not in (response, self._response) and not same
        if self._reply is None or other or (self._answered and not same):
            self._reply = {
                "role": "assistant",
                "content": [],
                "reasoning_content": "",
                "tool_calls": [],
            }
            self.messages.append(self._reply)
            self._response, self._answered = response, False
        self._response = self._response or response
        return self._reply
