"""Content blocks of a reply, as a list and as server-sent events. One block is open at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import orjson

from sessiond.api.dialect import Json
from sessiond.api.messages.blocks import PREFIX
from sessiond.sessions.parts import Called, Part, Said, Thought, joined

SIGNATURE = "c2Vzc2lvbmQ="
"""Of every thinking block. Clients send it back, and nothing depends on it."""
_MARK = "\x00"

Kind = Literal["text", "thinking"]


def event(kind: str, **fields: object) -> bytes:
    data = orjson.dumps({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def content(parts: Iterable[Part], *, thoughts: bool) -> list[Json]:
    """The blocks of a whole reply."""
    told: list[Part] = []
    for part in joined(part for part in parts if isinstance(part, Called) or part.text):
        if _makes_a_block(part, told[-1] if told else None):
            told.append(part)
    return [_block(part, thoughts) for part in joined(told)]


def _makes_a_block(part: Part, before: Part | None) -> bool:
    """Or goes on with one: nothing but white space makes no block."""
    return isinstance(part, Called) or type(part) is type(before) or bool(part.text.strip())


def _block(part: Part, thoughts: bool) -> Json:
    if isinstance(part, Said):
        return {"type": "text", "text": part.text}
    if isinstance(part, Thought):
        text = part.text if thoughts else ""
        return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
    return _call(part, part.arguments)


def _call(part: Called, given: str) -> Json:
    """`given` as the model wrote it: numbers of any size stay what they are."""
    told = {"type": "tool_use", "id": PREFIX + part.id, "name": part.name}
    return {**told, "input": orjson.Fragment(given)}


class BlockWriter:
    """The events of a reply's blocks: the same blocks as `content` gives, however it is cut.

    A delta's constant bytes are rendered once for a block: the per-token path only quotes the text.
    """

    def __init__(self, *, thoughts: bool) -> None:
        """Without `thoughts`, only that there were some is told."""
        self._thoughts = thoughts
        self._index = -1
        self._open: Kind | None = None
        self._held = ""
        self._held_as: Kind = "text"
        self._head = self._tail = b""

    def part(self, part: Part) -> bytes:
        if isinstance(part, Called):
            self._held = ""
            return self.close() + self._whole_call(part)
        if not part.text:
            return b""
        kind: Kind = "text" if isinstance(part, Said) else "thinking"
        text = self._held + part.text if kind == self._held_as else part.text
        self._held, self._held_as = "", kind
        if kind == self._open:
            return self._delta(text)
        if not text.strip():
            self._held = text
            return b""
        return self.close() + self._start(kind) + self._delta(text)

    def alive(self) -> bytes:
        """An empty delta, in a block of text where none is open."""
        started = b"" if self._open else self._start("text")
        return started + self._head + b'""' + self._tail

    def close(self) -> bytes:
        """The end of the open block, if there is one."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        signed = self._event_of({"type": "signature_delta", "signature": SIGNATURE})
        return (signed if kind == "thinking" else b"") + self._stop()

    def _start(self, kind: Kind) -> bytes:
        self._index += 1
        self._open = kind
        delta = self._event_of({"type": f"{kind}_delta", kind: _MARK})
        self._head, self._tail = delta.split(orjson.dumps(_MARK))
        block = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
        return event("content_block_start", index=self._index, content_block=block)

    def _delta(self, text: str) -> bytes:
        if self._open == "thinking" and not self._thoughts:
            return b""
        return self._head + orjson.dumps(text) + self._tail

    def _whole_call(self, call: Called) -> bytes:
        self._index += 1
        start = event("content_block_start", index=self._index, content_block=_call(call, "{}"))
        given = {"type": "input_json_delta", "partial_json": call.arguments}
        return start + self._event_of(given) + self._stop()

    def _event_of(self, delta: Json) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        return event("content_block_stop", index=self._index)
