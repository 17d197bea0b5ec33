"""The client-visible conversation in canonical form: what requests of the same line share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from sessiond.errors import InvalidRequest, UnsupportedContent
from sessiond.sessions.echo import visible

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
CARRY_NOTHING = ("x-anthropic-billing-header:",)
"""Lines of the system prompt that begin so are for the provider, and differ in every request."""
PER_MESSAGE = 20
"""Characters that a template spends on a message beside its own."""
EXACT_INTEGERS = 2**53
_JSON_BEGINS = frozenset("{[-0123456789tfn")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Templates teach models to write these, too."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is canonical JSON (sorted keys, no spaces), or the raw text if it is not JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`content` is the text of all text parts. `reasoning` is what the client sent back of it.

    `note` is what the model reads behind the content: sessiond wrote it, no client knows of it.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request's content.

    `tools` are compact JSON definitions in the client's order, keys too: models are trained on it.
    Lists of tools are the same if they are the same set of parsed definitions (`tools_digest`).
    """

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    template_options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A raw completion's prompt."""

    prompt: str


Content = Chat | Text


def read_chat(
    messages: object,
    tools: object = None,
    template_options: Mapping[str, object] | None = None,
) -> Chat:
    """Canonical form of parsed request data in OpenAI's shape; unknown fields are ignored.

    Raises InvalidRequest or UnsupportedContent; `param` names the field.
    """
    listed = _list(messages, "messages")
    if not listed:
        raise InvalidRequest("'messages' is empty.", hint="Send a message.", param="messages")
    return Chat(
        tuple(read_message(one, f"messages[{i}]") for i, one in enumerate(listed)),
        tuple(read_tool(one, f"tools[{i}]") for i, one in enumerate(_list(tools, "tools"))),
        tuple(sorted((template_options or {}).items())),
    )


def read_text(prompt: object) -> Text:
    """The prompt of a raw completion; raises InvalidRequest."""
    return Text(_text(prompt, "prompt"))


def read_message(data: object, param: str = "messages[0]") -> Message:
    """One message of a request; raises as `read_chat` does."""
    fields = _object(data, param)
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise InvalidRequest(
            f"'{param}.role' is {role!r}.", hint=f"Use one of: {known}.", param=f"{param}.role"
        )
    calls = _list(fields.get("tool_calls"), f"{param}.tool_calls")
    reasoning = fields.get("reasoning_content", fields.get("reasoning"))
    content = _content(fields.get("content"), f"{param}.content", ROLES[role])
    return Message(
        role=ROLES[role],
        content=content,
        name=_optional_text(fields, "name", param),
        tool_calls=tuple(_tool_call(c, f"{param}.tool_calls[{i}]") for i, c in enumerate(calls)),
        tool_call_id=_optional_text(fields, "tool_call_id", param),
        reasoning=clean(reasoning) if isinstance(reasoning, str) and reasoning else None,
    )


def read_tool(data: object, param: str = "tools[0]") -> str:
    """A tool definition as compact JSON, without what only steers caches.

    Not being strict is said as often as it is left out, by one API and the other.
    """
    fields = _without_markers(_object(data, param))
    if isinstance(function := fields.get("function"), dict):
        given = _without_markers(function)
        if not given.get("strict"):
            given.pop("strict", None)
        fields["function"] = given
    return clean(json.dumps(fields, separators=(",", ":"), ensure_ascii=False))


def canonical_arguments(value: object) -> str:
    """A string or an object as canonical JSON; text that is not JSON stays as it is."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    try:
        parsed = json.loads(text.strip() or "{}", parse_float=_number, parse_constant=_number)
        compact = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return clean(text)
    cleaned = clean(compact)
    return cleaned if cleaned == compact else canonical_arguments(cleaned)


def clean(text: str) -> str:
    """Text that can be written as UTF-8: half surrogate pairs become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def as_seen(message: Message) -> Message:
    """A reply without its reasoning and with the calls in its text as calls; others unchanged."""
    if message.role != "assistant":
        return message
    said = visible(message.content)
    written = (ToolCall("", call.name, canonical_arguments(call.arguments)) for call in said.calls)
    calls = (*message.tool_calls, *written)
    return replace(message, content=said.text, tool_calls=calls, reasoning=None)


def digest(message: Message) -> bytes:
    """16 bytes, the same for messages that mean the same: role, content, tool calls.

    Ids and reasoning are left out, and so is white space around what the assistant said; calls in
    its text count as calls, and so the order of calls does not. A name counts where it tells
    speakers apart.
    """
    seen = as_seen(message)
    speaker = (message.name or "") if message.role in ("user", "system") else ""
    parts = [message.role, seen.content, speaker]
    for call in sorted((call.name, *untyped(call.arguments)) for call in seen.tool_calls):
        parts += call
    return hash_parts(parts)


def equal(a: Message, b: Message) -> bool:
    return digest(a) == digest(b)


def tools_digest(tools: Sequence[str]) -> bytes:
    """16 bytes, whatever the order of the definitions and of their keys."""
    return hash_parts(sorted({canonical_arguments(tool) for tool in tools}))


def hash_parts(parts: Sequence[str]) -> bytes:
    """16 bytes; where one part ends and the next begins counts."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def untyped(arguments: str) -> list[str]:
    """The names and values of canonical arguments, text that holds JSON not told from that JSON.

    Some models write every value as text, and clients make of it what the tool's schema says.
    """
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return [arguments]
    if not isinstance(given, dict):
        return [arguments]
    return ["{", *(part for name, value in given.items() for part in (name, _as_text(value))), "}"]


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    written = _PYTHON.get(value, value.strip())
    if written[:1] not in _JSON_BEGINS:
        return value
    try:
        return json.dumps(json.loads(canonical_arguments(written)))
    except (ValueError, RecursionError):
        return value


def characters(chat: Chat) -> int:
    """Of all that was said, arguments of calls and definitions of tools too."""
    calls = sum(len(call.arguments) for m in chat.messages for call in m.tool_calls)
    said = sum(len(message.content) + PER_MESSAGE for message in chat.messages)
    return said + calls + sum(map(len, chat.tools))


def _content(value: object, param: str, role: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _for_the_model(clean(value), role)
    if not isinstance(value, list):
        raise InvalidRequest(f"'{param}' must be a string or a list of parts.", param=param)
    parts = (_part(part, f"{param}[{i}]") for i, part in enumerate(value))
    # Each by itself: a line that carries nothing ends with its part.
    return "".join(_for_the_model(part, role) for part in parts)


def _for_the_model(content: str, role: str) -> str:
    if role != "system" or not any(start in content for start in CARRY_NOTHING):
        return content
    lines = content.splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith(CARRY_NOTHING))


def _without_markers(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name != "cache_control"}


def _part(value: object, param: str) -> str:
    fields = _object(value, param)
    kind = fields.get("type")
    if str(kind) not in TEXT_PARTS:
        raise UnsupportedContent(
            f"'{param}' is of type {kind!r}.", hint="Only text parts are supported.", param=param
        )
    return _text(fields.get("text"), f"{param}.text")


def _tool_call(value: object, param: str) -> ToolCall:
    fields = _object(value, param)
    function = _object(fields.get("function"), f"{param}.function")
    identity = fields.get("id")
    return ToolCall(
        id=clean(identity) if isinstance(identity, str) else "",
        name=_text(function.get("name"), f"{param}.function.name"),
        arguments=canonical_arguments(function.get("arguments")),
    )


def _optional_text(fields: Mapping[str, object], key: str, param: str) -> str | None:
    value = fields.get(key)
    return None if value is None else _text(value, f"{param}.{key}")


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"'{param}' must be a string.", param=param)
    return clean(value)


def _list(value: object, param: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"'{param}' must be a list.", param=param)
    return value


def _object(value: object, param: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{param}' must be an object.", param=param)
    return value


def _number(text: str) -> float | int:
    # JavaScript clients write 1.0 back as 1.
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return int(value) if value.is_integer() and abs(value) <= EXACT_INTEGERS else value
