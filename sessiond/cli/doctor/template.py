"""The chat template: how it is rendered, and what it can say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.chat.told_tools import tells_of_tools
from sessiond.cli.doctor.finding import Finding, note, ok, problem, warning
from sessiond.engine.fake import FakeModel
from sessiond.engine.memory import Memory, MemoryKind
from sessiond.errors import TemplateError
from sessiond.sessions.calls.formats import format_of
from sessiond.sessions.transcript import Chat, Message, ToolCall

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TOOL = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    }
)
_REASONING = ("<think>", "reasoning_content", "enable_thinking", "reasoning_effort", "thinking")


@dataclass(frozen=True, slots=True)
class Facts:
    """`error` where it does not compile or render a plain chat. `cuts`: the new part of a chat can
    be cut out behind the last reply; `cuts_calls`: behind one with tool calls. `given`: from a file
    of `model.chat_template_file`.
    """

    present: bool
    error: str = ""
    cuts: bool = False
    cuts_calls: bool = False
    tells_of_tools: bool = False
    calls: str = ""
    reasons: bool = False
    given: bool = False


def observe(source: str, *, given: bool = False) -> Facts:
    """Renders it in its sandbox, without the model."""
    if not source:
        return Facts(present=False)
    try:
        template = ChatTemplate(source)
        renderer = TemplateRenderer(FakeModel(Memory(MemoryKind.ATTENTION)), template)
        cuts = _cuts(renderer, _PLAIN)
    except TemplateError as error:
        return Facts(present=True, error=error.message, given=given)
    return Facts(
        present=True,
        cuts=cuts,
        cuts_calls=_cuts_calls(renderer),
        tells_of_tools=tells_of_tools(source),
        calls=format_of(source).name,
        reasons=any(word in source for word in _REASONING),
        given=given,
    )


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.present:
        yield problem(
            "template",
            "the model has none",
            "It cannot chat; only /v1/completions works.",
            "sessiond serve --model-chat-template-file FILE (the model's page has one)",
        )
        return
    if facts.error:
        yield problem(
            "template",
            facts.error,
            "It cannot chat.",
            "sessiond serve --model-chat-template-file FILE",
        )
        return
    where = "from model.chat_template_file" if facts.given else "the model's own"
    yield from _of_cutting(facts, where)
    reasoning = ", reasoning" if facts.reasons else ""
    if facts.tells_of_tools:
        yield ok(
            "tools", f"the template tells of tools, calls are written as {facts.calls}{reasoning}"
        )
    else:
        yield note(
            "tools",
            f"the template does not mention tools{reasoning}",
            "The system prompt tells of them; how well the model calls them is its own affair.",
        )


def _of_cutting(facts: Facts, where: str) -> Iterator[Finding]:
    if facts.cuts and facts.cuts_calls:
        yield ok("template", f"{where}; only what is new of a chat is rendered")
    elif facts.cuts:
        yield note(
            "template",
            f"{where}; after tool calls the whole chat is rendered anew",
            "Then the longest common beginning is reused, which is usually nearly all.",
        )
    else:
        yield warning(
            "template",
            f"{where}; it repeats the front before the last question",
            "The whole chat is rendered anew each turn: little of a conversation is reused.",
            "sessiond serve --model-chat-template-file FILE, with one that only appends",
        )


_FRONT = (Message("system", "Be brief."), Message("user", "One?"))
_PLAIN = Chat((*_FRONT, Message("assistant", "Two."), Message("user", "Three?")))
_CALL = ToolCall("call_1", "look", '{"at": "it"}')
_CALLING = Chat(
    (
        *_FRONT,
        Message("assistant", "", tool_calls=(_CALL,)),
        Message("tool", "Seen.", tool_call_id="call_1"),
    ),
    tools=(_TOOL,),
)


def _cuts(renderer: TemplateRenderer, chat: Chat) -> bool:
    return renderer.suffix(chat, len(chat.messages) - 1, _NOW) is not None


def _cuts_calls(renderer: TemplateRenderer) -> bool:
    try:
        return _cuts(renderer, _CALLING)
    except TemplateError:
        return False
