"""How families of models write reasoning and tool calls, and what clients make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.fake import FakeModel
from sessiond.engine.memory import Tokens
from sessiond.sessions.transcript import read_chat

TEMPLATES = Path(__file__).parent.parent / "templates"
Arguments = dict[str, Any]
Message = dict[str, Any]
NOW = datetime(2025, 11, 29, 10, 2, tzinfo=UTC)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {one: {"type": "string"} for one in of}},
        },
    }
    for name, of in {"read_file": ["path", "limit"], "write_file": ["path", "content"]}.items()
]


@dataclass(frozen=True)
class Family:
    """`opening` is the generation prompt. `reasoned` and `called` write a reply's parts.

    `talks`: text may stand before a call. `many`: a reply may have more than one.
    """

    name: str
    opening: str
    reasoned: Callable[[str], str]
    called: Callable[[str, Arguments], str]
    talks: bool = True
    many: bool = True

    @property
    def template(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text()

    def count(self, messages: list[Message]) -> int:
        """Tokens of a request with these messages, rendered anew."""
        return len(renderer(self.name).full(read_chat(messages, TOOLS), NOW))

    def tokens(self, text: str) -> int:
        return len(renderer(self.name).text(text, first=False))

    def text(self, messages: list[Message]) -> str:
        return spelled(renderer(self.name).full(read_chat(messages, TOOLS), NOW))


@cache
def renderer(family: str) -> TemplateRenderer:
    return TemplateRenderer(FakeModel(), ChatTemplate(FAMILIES[family].template))


def spelled(tokens: Tokens) -> str:
    model = FakeModel()
    return b"".join(model.piece(int(token), special=True) for token in tokens).decode()


def _tags(name: str, arguments: Arguments) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in texts.items())
    return f"\n<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def _hermes(name: str, arguments: Arguments) -> str:
    return f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _llama(name: str, arguments: Arguments) -> str:
    return json.dumps({"name": name, "parameters": arguments})


def _mistral(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"


def _python(name: str, arguments: Arguments) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"\n```tool_code\nprint({name}({given}))\n```"


def _channel(name: str, arguments: Arguments) -> str:
    to = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{to}{json.dumps(arguments)}"


def _think(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


FAMILIES = {
    family.name: family
    for family in (
        Family("qwen", "<|im_start|>assistant\n", _think, _hermes),
        Family("qwen_coder", "<|im_start|>assistant\n", _think, _tags),
        Family(
            "llama_tools",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            _think,
            _llama,
            talks=False,
            many=False,
        ),
        Family("mistral_calls", "", "[THINK]{}[/THINK]".format, _mistral),
        Family("gemma_code", "<start_of_turn>model\n", _think, _python, many=False),
        Family(
            "harmony",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>{}<|end|><|start|>assistant".format,
            _channel,
            talks=False,
            many=False,
        ),
    )
}


def call_of(number: int, name: str, arguments: Arguments) -> Message:
    """As clients keep calls: ids of their own, keys in any order, arguments in any shape."""
    turned = dict(sorted(arguments.items(), reverse=number % 2 == 0))
    shape: object = turned
    if number % 3:
        shape = json.dumps(turned, indent=2 if number % 3 == 1 else None, separators=(" ,", ": "))
    function = {"arguments": shape, "name": name}
    return {"type": "function", "function": function, "index": 0, "id": f"call{number:05}"}
