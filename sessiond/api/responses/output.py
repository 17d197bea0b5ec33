"""The output of a response while it is written: its events, and its items so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessiond.api.dialect import Json
from sessiond.api.responses.items import Wording, text_part
from sessiond.sessions.parts import Called, Part, Said, Thought

Tell = Callable[..., bytes]
"""Makes an event of its type and fields."""


@dataclass(frozen=True, slots=True)
class _Words:
    """How one kind of text is streamed: `response.{text}.delta` and so on."""

    text: str
    part: str
    index: str
    kind: str

    def worded(self, text: str) -> Json:
        return text_part(text) if self.kind == "output_text" else {"type": self.kind, "text": text}


_SAID = _Words("output_text", "content_part", "content_index", "output_text")
_THOUGHT = _Words("reasoning_text", "content_part", "content_index", "reasoning_text")
_SUMMARY = _Words(
    "reasoning_summary_text", "reasoning_summary_part", "summary_index", "summary_text"
)


class Output:
    """Items in order, one open at most: words and reasoning grow, calls come whole."""

    def __init__(self, wording: Wording, tell: Tell) -> None:
        self.items: list[Json] = []
        self._wording = wording
        self._tell = tell
        self._open: Said | Thought | None = None
        self._texts: list[str] = []
        self._logprobs: list[Json] = []

    def add(self, part: Part, logprobs: Sequence[Json] = ()) -> bytes:
        """`logprobs` are of the part's tokens; only those of words are told."""
        if isinstance(part, Called):
            return self.close() + self._called(part)
        events = b"" if type(part) is type(self._open) else self.close() + self._begin(part)
        self._texts.append(part.text)
        words, more = self._words(part), {}
        if isinstance(part, Said):
            self._logprobs += logprobs
            more = {"logprobs": list(logprobs)}
        told = {words.index: 0, "delta": part.text, **more}
        return events + self._told(f"response.{words.text}.delta", part, told)

    def close(self, status: str = "completed") -> bytes:
        """Ends the open item, if there is one."""
        if self._open is None:
            return b""
        text, words = "".join(self._texts), self._words(self._open)
        whole = Said(text) if isinstance(self._open, Said) else Thought(text)
        self._open = None
        item = self._wording.item(whole, len(self.items), status)
        part, more = words.worded(text), {}
        if isinstance(whole, Said):
            part = text_part(text, self._logprobs)
            more, item["content"] = {"logprobs": self._logprobs}, [part]
        done = self._told(
            f"response.{words.text}.done", whole, {words.index: 0, "text": text, **more}
        )
        done += self._told(f"response.{words.part}.done", whole, {words.index: 0, "part": part})
        return done + self._ended(item)

    def nothing(self) -> bytes:
        """A message without words, where nothing has been said."""
        return b"" if self.items or self._open else self._begin(Said(""))

    def _words(self, part: Said | Thought) -> _Words:
        if isinstance(part, Said):
            return _SAID
        return _SUMMARY if self._wording.summarises else _THOUGHT

    def _begin(self, part: Said | Thought) -> bytes:
        self._open, self._texts, self._logprobs = part, [], []
        words = self._words(part)
        added = self._added(Said("") if isinstance(part, Said) else Thought(""))
        told = {words.index: 0, "part": words.worded("")}
        return added + self._told(f"response.{words.part}.added", part, told)

    def _called(self, call: Called) -> bytes:
        arguments, kind = call.arguments, "response.function_call_arguments"
        return (
            self._added(Called(call.id, call.name, ""))
            + self._told(f"{kind}.delta", call, {"delta": arguments})
            + self._told(f"{kind}.done", call, {"name": call.name, "arguments": arguments})
            + self._ended(self._wording.item(call, len(self.items)))
        )

    def _added(self, part: Part) -> bytes:
        index = len(self.items)
        item = self._wording.item(part, index, "in_progress")
        return self._tell("response.output_item.added", output_index=index, item=item)

    def _ended(self, item: Json) -> bytes:
        index = len(self.items)
        self.items.append(item)
        return self._tell("response.output_item.done", output_index=index, item=item)

    def _told(self, kind: str, part: Part, fields: Json) -> bytes:
        index = len(self.items)
        place = {"item_id": self._wording.id(part, index), "output_index": index}
        return self._tell(kind, **place, **fields)
