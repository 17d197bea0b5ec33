"""Items as the Responses API has them: what a reply is made of, and what it answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sessiond.api.dialect import Json
from sessiond.api.responses.ids import ItemPlace, item_id
from sessiond.sessions.parts import Called, Part, Said, Thought, joined
from sessiond.sessions.transcript import Message

_CONTENT = {"system": "input_text", "user": "input_text", "assistant": "output_text"}


@dataclass(frozen=True, slots=True)
class Wording:
    """How a response words its items. `summarises`: reasoning goes where summaries are read.

    `encrypts`: a client wants something to bring back; the ledger has the reasoning already.
    `namespaces` are those that functions are called in, by their names.
    """

    response: str
    summarises: bool = False
    encrypts: bool = False
    namespaces: Mapping[str, str] = field(default_factory=dict)

    def items(self, parts: Iterable[Part], *, cut: bool = False) -> list[Json]:
        """Of a whole reply; `cut` if it is not complete, while a call always is."""
        whole = joined(parts) or (Said(""),)
        items = [self.item(part, index) for index, part in enumerate(whole)]
        if cut and not isinstance(whole[-1], Called):
            items[-1] = {**items[-1], "status": "incomplete"}
        return items

    def item(self, part: Part, index: int, status: str = "completed") -> Json:
        if isinstance(part, Called):
            namespace = self.namespaces.get(part.name)
            return {
                "id": self.id(part, index),
                "type": "function_call",
                "status": status,
                "call_id": part.id,
                "name": part.name,
                "arguments": part.arguments,
                **({} if namespace is None else {"namespace": namespace}),
            }
        if isinstance(part, Thought):
            return self._reasoning(part, index, status)
        content = [text_part(part.text)] if part.text or status != "in_progress" else []
        return {
            "id": self.id(part, index),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def id(self, part: Part, index: int) -> str:
        kind = "fc" if isinstance(part, Called) else "msg" if isinstance(part, Said) else "rs"
        return item_id(kind, ItemPlace(self.response, index))

    def _reasoning(self, part: Thought, index: int, status: str) -> Json:
        kind = "summary_text" if self.summarises else "reasoning_text"
        texts = [{"type": kind, "text": part.text}] if part.text else []
        item: Json = {
            "id": self.id(part, index),
            "type": "reasoning",
            "status": status,
            "summary": texts if self.summarises else [],
            "content": [] if self.summarises else texts,
        }
        return {**item, "encrypted_content": f"kept:{item['id']}"} if self.encrypts else item


def text_part(text: str, logprobs: Sequence[Json] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def input_items(response: str, messages: Sequence[Message]) -> list[Json]:
    """The messages that a response answered, in order."""
    items: list[Json] = []
    for message in messages:
        for item in _of_message(message):
            kind = "fc" if item["type"].startswith("function_call") else "msg"
            place = ItemPlace(response, len(items), is_input=True)
            items.append({"id": item_id(kind, place), "status": "completed", **item})
    return items


def _of_message(message: Message) -> list[Json]:
    if message.role == "tool":
        output = {"type": "function_call_output", "output": message.content}
        return [{**output, "call_id": message.tool_call_id or ""}]
    part: Json = {"type": _CONTENT[message.role], "text": message.content}
    if message.role == "assistant":
        part["annotations"] = []
    said = {"type": "message", "role": message.role, "content": [part]}
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in message.tool_calls
    ]
    return [*([said] if message.content or not calls else []), *calls]
