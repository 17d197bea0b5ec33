"""A chat request's messages as the transcript wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessiond.errors import InvalidRequest
from sessiond.metrics import PARTS_REPLACED
from sessiond.sessions.transcript import TEXT_PARTS, Chat, read_chat

_KINDS = {
    "image_url": "image",
    "image": "image",
    "input_audio": "audio",
    "file": "file",
    "document": "document",
    "input_image": "image",
    "input_file": "file",
}


def conversation(body: Mapping[str, Any]) -> Chat:
    """`body` has passed ChatRequest.

    What the model cannot read is replaced by a note up to the last assistant message.
    Raises InvalidRequest or UnsupportedContent with `param`.
    """
    messages: list[dict[str, Any]] = body["messages"]
    for index, message in enumerate(messages):
        _require_content(message, f"messages[{index}].content")
    said = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    new = said[-1] + 1 if said else 0
    readable = [*map(_readable, messages[:new]), *messages[new:]]
    chat = read_chat(readable, body.get("tools"), body.get("chat_template_kwargs"))
    PARTS_REPLACED.inc(sum(map(_unsupported_parts, messages[:new])))
    return chat


def _require_content(message: Mapping[str, Any], param: str) -> None:
    if message.get("content") is not None:
        return
    excuses = ("tool_calls", "reasoning_content", "reasoning")
    if message["role"] != "assistant" or not any(message.get(each) for each in excuses):
        raise InvalidRequest(
            f"{param} is missing.",
            hint="Only an assistant message with tool_calls may do without.",
            param=param,
        )


def _readable(message: dict[str, Any]) -> dict[str, Any]:
    if not _unsupported_parts(message):
        return message
    parts = [note(part) if _unsupported(part) else part for part in message["content"]]
    return {**message, "content": parts}


def _unsupported_parts(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    return sum(map(_unsupported, content)) if isinstance(content, list) else 0


def _unsupported(part: object) -> bool:
    return isinstance(part, dict) and str(part.get("type")) not in TEXT_PARTS


def note(part: Mapping[str, Any]) -> dict[str, str]:
    kind = _KINDS.get(str(part.get("type")), "part")
    return {"type": "text", "text": f"[{kind} left out: this model reads text only]"}
