"""An Anthropic request's content as the transcript wants it: the same as through any other API.

Results of tools become messages of their own, before what the user says in the same message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sessiond.api.dialect import Json
from sessiond.api.messages.blocks import Block, BlockReader, located
from sessiond.metrics import PARTS_REPLACED
from sessiond.sessions.transcript import Chat, read_chat


def conversation(
    body: Mapping[str, Any], tools: Sequence[Json], template_options: Mapping[str, object]
) -> Chat:
    """`body` has passed the schema; `tools` are as OpenAI writes them.

    What the model cannot read is replaced by a note up to the last assistant message.
    Raises InvalidRequest or UnsupportedContent with `param`.
    """
    messages: list[Json] = body["messages"]
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    new = replies[-1] + 1 if replies else 0
    reader = BlockReader()
    read = _system(body.get("system"), reader)
    for index, message in enumerate(messages):
        reader.lenient = index < new
        read += _message(message, f"messages[{index}].content", reader)
    chat = _without_empty_front(read_chat(read, list(tools), template_options))
    PARTS_REPLACED.inc(reader.replaced)
    return chat


def _system(system: str | list[Any] | None, reader: BlockReader) -> list[Json]:
    if not system:
        return []
    return [{"role": "system", "content": reader.texts(system, "system")}]


def _message(message: Json, param: str, reader: BlockReader) -> list[Json]:
    role, content = message["role"], message["content"]
    if isinstance(content, str) or role == "system":
        return [{"role": role, "content": reader.texts(content, param)}]
    blocks = [located(block, f"{param}[{i}]") for i, block in enumerate(content)]
    return [_assistant(blocks, reader)] if role == "assistant" else _user(blocks, reader)


def _user(blocks: Sequence[Block], reader: BlockReader) -> list[Json]:
    results = [reader.result(block) for block in blocks if block.kind == "tool_result"]
    said = [reader.text(block) for block in blocks if block.kind != "tool_result"]
    return [*results, {"role": "user", "content": said}] if said or not results else results


def _assistant(blocks: Sequence[Block], reader: BlockReader) -> Json:
    calls = [reader.call(block) for block in blocks if block.kind == "tool_use"]
    thoughts = [block.text("thinking") for block in blocks if block.kind == "thinking"]
    apart = ("tool_use", "thinking", "redacted_thinking")
    return {
        "role": "assistant",
        "content": [reader.text(block) for block in blocks if block.kind not in apart],
        "tool_calls": calls,
        "reasoning_content": "".join(thoughts),
    }


def _without_empty_front(chat: Chat) -> Chat:
    """A system prompt of nothing but lines for the provider is none."""
    first, *rest = chat.messages
    if first.role == "system" and not first.content and rest:
        return replace(chat, messages=tuple(rest))
    return chat
