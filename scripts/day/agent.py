"""The agent of a trace: from its events and the replies so far to the next request."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scripts.bench import words
from scripts.daemon import Json
from scripts.day.client import Reply
from scripts.day.trace import Edit, Prune, Say, TraceError, Turn

PLACEHOLDER = "[Old tool result content cleared]"
NOTHING = "(nothing)"
_LEAST_WORDS = 3
_LEAST_REPLY = 8
Words = Callable[[int, str], str]
_TOOLS = "read_file write_file grep list_folder run_command edit_file fetch ask".split()
_PATHS = ("main.py", "notes.md", "data.csv", "test.py")


@dataclass(frozen=True, slots=True)
class Said:
    """A message as the agent keeps it. `output`: a tool's, whatever its role."""

    message: Json
    output: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What a turn sends."""

    turn: Turn
    said: tuple[Said, ...]
    tools: tuple[Json, ...]
    max_tokens: int = 0

    @property
    def messages(self) -> list[Json]:
        return [one.message for one in self.said]

    @property
    def body(self) -> Json:
        body: Json = {"messages": self.messages, "max_tokens": self.max_tokens}
        if self.tools:
            body["tools"] = list(self.tools)
        if self.turn.calls:
            body |= {"tool_choice": "required", "parallel_tool_calls": False}
        return body | {"temperature": 0, "seed": 0}


class Agent:
    """Remembers every conversation by the event that it ended with. Lengths are times `scale`."""

    def __init__(self, trace: str, scale: float) -> None:
        self._trace = trace
        self._scale = scale
        self._known: dict[str, tuple[Said, ...]] = {}
        self._replies: dict[str, Reply] = {}

    def request(self, turn: Turn) -> Request:
        """Raises TraceError where the conversation is shorter than the trace takes it for."""
        said = self._known[turn.after] if turn.after else ()
        if turn.back > len(said):
            raise TraceError(f"{turn.id}: {turn.back} messages back, and there are {len(said)}")
        said = said[: len(said) - turn.back]
        if turn.edit:
            said = self._edited(turn, said, turn.edit)
        if turn.prune:
            said = _pruned(said, turn.prune)
        if turn.compact:
            said = self._compacted(said, turn.compact.summary, turn.compact.keep)
        for number, say in enumerate(turn.say):
            said = (*said, *self._new(turn, number, say, said))
        tools = tuple(tool(n, self._words) for n in range(turn.tools))
        return Request(turn, said, tools, self._longest_reply(turn))

    def hear(self, request: Request, reply: Reply) -> None:
        """The reply becomes part of the conversation, as this agent keeps it."""
        kept = Said(reply.kept(drops=request.turn.reasoning == "drop"))
        self._known[request.turn.id] = (*request.said, kept)
        self._replies[request.turn.id] = reply

    def conversation(self, event: str) -> tuple[Said, ...]:
        return self._known[event]

    def _new(self, turn: Turn, number: int, say: Say, before: Sequence[Said]) -> list[Said]:
        if say.words is not None:
            text = self._words(say.words, say.like or f"{turn.id} {number}").strip()
        else:
            text = self._replies[say.reply_of or ""].text.strip() or NOTHING
        if say.role != "output":
            return [Said({"role": say.role, "content": text})]
        calls = before[-1].message.get("tool_calls", ()) if before else ()
        if not calls:
            return [Said({"role": "user", "content": text}, output=True)]
        return [
            Said({"role": "tool", "tool_call_id": call["id"], "content": text}, output=True)
            for call in calls
        ]

    def _edited(self, turn: Turn, said: tuple[Said, ...], edit: Edit) -> tuple[Said, ...]:
        if not -len(said) <= edit.message < len(said):
            raise TraceError(f"{turn.id}: there is no message {edit.message} of {len(said)}")
        at = edit.message % len(said)
        text = self._words(edit.words, f"{turn.id} edit").strip()
        changed = replace(said[at], message={**said[at].message, "content": text})
        return (*said[:at], changed, *said[at + 1 :])

    def _compacted(self, said: tuple[Said, ...], summary: str, keep: int) -> tuple[Said, ...]:
        front = said[: front_of([one.message for one in said])]
        text = f"Summary: {self._replies[summary].text.strip() or NOTHING}"
        kept = said[len(said) - keep :] if keep else ()
        return (*front, Said({"role": "user", "content": text}), *kept)

    def _longest_reply(self, turn: Turn) -> int:
        """A call has to be whole, however short the texts are."""
        if turn.calls:
            return turn.max_tokens
        return max(round(turn.max_tokens * self._scale), _LEAST_REPLY)

    def _words(self, count: int, seed: str) -> str:
        return words(max(round(count * self._scale), _LEAST_WORDS), f"{self._trace} {seed}")


def front_of(messages: Sequence[Json]) -> int:
    """How many system messages it begins with."""
    for number, message in enumerate(messages):
        if message["role"] != "system":
            return number
    return len(messages)


def tool(number: int, words: Words) -> Json:
    """A tool whose calls are short, whatever the model draws."""
    name = _TOOLS[number % len(_TOOLS)] + ("" if number < len(_TOOLS) else f"_{number}")
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string", "enum": list(_PATHS)}},
        "required": ["path"],
        "additionalProperties": False,
    }
    described = words(24, f"tool {name}").strip()
    function = {"name": name, "description": described, "parameters": parameters}
    return {"type": "function", "function": function}


def _pruned(said: tuple[Said, ...], prune: Prune) -> tuple[Said, ...]:
    outputs = [number for number, one in enumerate(said) if one.output]
    gone = set(outputs[: len(outputs) - prune.keep])
    return tuple(
        replace(one, message={**one.message, "content": PLACEHOLDER}) if number in gone else one
        for number, one in enumerate(said)
    )


def key_of(messages: Sequence[Json], tools: Sequence[Json]) -> list[str]:
    """One string for the tools and one for each message: equal where they are the same."""
    return [json.dumps(one, sort_keys=True) for one in (list(tools), *messages)]
