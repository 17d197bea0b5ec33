"""Where two conversations part: message, field, character, and what stood there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessiond.sessions.transcript import (
    Chat,
    Message,
    ToolCall,
    as_seen,
    canonical_arguments,
    digest,
    equal,
    tools_digest,
)

AROUND = 40
"""Characters of an excerpt on each side of the first difference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a request to a line that was known before.

    `message` indexes the request's messages, `param` names the field as requests do, `char` is the
    first character that differs. `before` and `after` are the whole texts of the field; of a reply
    without its reasoning, of the tools the definitions that are not in both.
    """

    message: int
    role: str
    field: str
    char: int
    before: str
    after: str

    @property
    def param(self) -> str:
        return "tools" if self.field == "tools" else f"messages[{self.message}].{self.field}"

    @property
    def excerpts(self) -> tuple[str, str]:
        """What stood there and what stands there now, one line each."""
        return excerpt(self.before, self.char), excerpt(self.after, self.char)


def first_difference(known: Chat, request: Chat) -> Difference | None:
    """None where the request has all of `known`, or `known` all of the request.

    System messages come before the tools, as most templates have it.
    """
    index = parting(known.messages, request.messages)
    front = front_length(known.messages)
    if index >= front and tools_digest(known.tools) != tools_digest(request.tools):
        return _of_tools(known, request)
    if index >= min(len(known.messages), len(request.messages)):
        return None
    return _of_message(known.messages[index], request.messages[index], index)


def parting(known: Sequence[Message], request: Sequence[Message]) -> int:
    """The index of the first message that is not the same in both."""
    pairs = zip(known, request, strict=False)
    same = (digest(mine) == digest(other) for mine, other in pairs)
    return next((i for i, equal in enumerate(same) if not equal), min(len(known), len(request)))


def spared(known: Sequence[Message], request: Sequence[Message]) -> int | None:
    """The first message behind all that changed that has the role of the last of those.

    It is as it was. Who clears the old outputs of tools leaves the newer ones, and begins with this
    one the next time. None where nothing changed, or all did.
    """
    shared = min(len(known), len(request))
    said = [index for index in range(shared) if request[index].role != "assistant"]
    changed = [index for index in said if digest(known[index]) != digest(request[index])]
    if not changed:
        return None
    role, behind = request[changed[-1]].role, range(changed[-1] + 1, shared)
    return next((index for index in behind if request[index].role == role), None)


def front_length(messages: Sequence[Message]) -> int:
    """How many system messages come before anything is said."""
    said = (index for index, message in enumerate(messages) if message.role != "system")
    return next(said, len(messages))


def system_text(chat: Chat) -> str:
    """All the system messages of the front."""
    return "\n".join(message.content for message in chat.messages[: front_length(chat.messages)])


def excerpt(text: str, char: int) -> str:
    """The characters around a position, on one line; cut ends are marked."""
    start, stop = max(0, char - AROUND), min(len(text), char + AROUND)
    cut = " ".join(text[start:stop].split())
    return ("…" if start else "") + cut + ("…" if stop < len(text) else "")


def parting_char(before: str, after: str) -> int:
    pairs = enumerate(zip(before, after, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(before), len(after)))


def _of_tools(known: Chat, request: Chat) -> Difference:
    mine, others = _definitions(known), _definitions(request)
    before, after = "\n".join(sorted(mine - others)), "\n".join(sorted(others - mine))
    return Difference(0, "tools", "tools", parting_char(before, after), before, after)


def _of_message(known: Message, request: Message, index: int) -> Difference:
    field, before, after = _field(as_seen(known), as_seen(request))
    return Difference(index, request.role, field, parting_char(before, after), before, after)


def _field(known: Message, request: Message) -> tuple[str, str, str]:
    if known.role != request.role:
        return "role", known.role, request.role
    if known.content != request.content:
        return "content", known.content, request.content
    if known.role in ("user", "system"):
        return "name", known.name or "", request.name or ""
    for number, (mine, other) in enumerate(zip(known.tool_calls, request.tool_calls, strict=False)):
        if mine.name != other.name:
            return f"tool_calls[{number}].function.name", mine.name, other.name
        if not equal(_calling(mine), _calling(other)):
            return f"tool_calls[{number}].function.arguments", mine.arguments, other.arguments
    return "tool_calls", _listed(known), _listed(request)


def _calling(call: ToolCall) -> Message:
    return Message("assistant", "", tool_calls=(call,))


def _definitions(chat: Chat) -> set[str]:
    return {canonical_arguments(tool) for tool in chat.tools}


def _listed(message: Message) -> str:
    return " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
