"""A template that prints no tools must not hide them from the model."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.fake import CHATML, FakeModel
from sessiond.sessions.transcript import Chat, Message, read_tool

TEMPLATES = Path(__file__).parent.parent / "templates"
NOW = datetime(2025, 11, 29, tzinfo=UTC)
TOOL = read_tool({"type": "function", "function": {"name": "ls", "parameters": {}}})
USER = Message("user", "Hi")


def written(template: str, *messages: Message, tools: tuple[str, ...] = (TOOL,)) -> str:
    renderer = TemplateRenderer(FakeModel(), ChatTemplate(template))
    return renderer.written(Chat(messages, tools), NOW)


@pytest.mark.parametrize("front", [(), (Message("system", "Be terse."),), (Message("system", ""),)])
def test_the_system_prompt_tells_of_tools_that_the_template_leaves_out(
    front: tuple[Message, ...],
) -> None:
    text = written(CHATML, *front, USER)
    assert text.count(TOOL) == 1
    assert text.count("<|im_start|>system") == 1
    assert text.index(TOOL) < text.index("Hi")
    assert "<tool_call>" in text
    if front and front[0].content:
        assert text.index("Be terse.") < text.index(TOOL)


def test_nothing_is_told_without_tools_or_by_a_template_that_tells_itself() -> None:
    assert "<tool_call>" not in written(CHATML, USER, tools=())
    qwen = (TEMPLATES / "qwen.jinja").read_text()
    assert written(qwen, USER).count('"ls"') == 1
