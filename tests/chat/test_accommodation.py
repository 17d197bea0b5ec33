"""Roles as agents send them, through templates that are strict about roles."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.chat.accommodation import accommodated
from sessiond.chat.template import ChatTemplate
from sessiond.errors import TemplateError
from sessiond.sessions.transcript import Message, ToolCall

NOW = datetime(2025, 11, 29, tzinfo=UTC)
FIRST_ONLY = (
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
)
NO_SYSTEM = "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
TAKES_TURNS = (
    "{% if loop.previtem is defined and loop.previtem.role == m.role %}"
    "{{ raise_exception('take turns') }}{% endif %}"
)
STRICT = {
    "lax": "",
    "first": FIRST_ONLY,
    "none": NO_SYSTEM,
    "turns": TAKES_TURNS,
    "first+turns": FIRST_ONLY + TAKES_TURNS,
    "none+turns": NO_SYSTEM + TAKES_TURNS,
}
each = pytest.mark.parametrize("rules", STRICT.values(), ids=STRICT)


@cache
def template_of(rules: str) -> ChatTemplate:
    return ChatTemplate(
        "{% for m in messages %}" + rules + "<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    )


def text_of(rules: str, messages: list[Message]) -> str:
    """Without a generation prompt: what a later turn begins with."""
    template = template_of(rules)

    def render(some: tuple[Message, ...]) -> str:
        said = [{"role": m.role, "content": m.content} for m in some]
        return template.render(said, tools=None, bos="", eos="", now=NOW, options={})

    return accommodated(tuple(messages), render)


def said(*roles: str) -> list[Message]:
    return [Message(role, f"{role[0]}{number}.") for number, role in enumerate(roles)]


talk = st.lists(st.sampled_from(["system", "user", "assistant"]), max_size=6)


@each
@given(front=st.integers(0, 3), rest=talk)
def test_nothing_is_lost_and_order_is_kept(rules: str, front: int, rest: list[str]) -> None:
    messages = said(*["system"] * front, "user", *rest)
    text = text_of(rules, messages)
    places = [text.index(message.content) for message in messages]
    assert places == sorted(places)


@each
@given(front=st.integers(0, 3), first=talk, more=talk)
def test_what_was_rendered_stays_when_messages_are_added(
    rules: str, front: int, first: list[str], more: list[str]
) -> None:
    roles = [*["system"] * front, "user", *first, "user"]
    begun = text_of(rules, said(*roles))
    assert text_of(rules, said(*roles, "assistant", *more)).startswith(begun.removesuffix("</>"))


def test_what_the_template_takes_is_not_changed() -> None:
    messages = said("system", "system", "user", "system", "assistant", "assistant")
    whole = "".join(f"<{m.role}>{m.content}</>" for m in messages)
    assert text_of("", messages) == whole


def test_only_what_is_refused_is_changed() -> None:
    messages = said("system", "user", "user", "assistant", "system", "user")
    assert text_of(FIRST_ONLY, messages) == (
        "<system>s0.</><user>u1.</><user>u2.</><assistant>a3.</><user>s4.</><user>u5.</>"
    )


def test_calls_and_results_are_never_joined() -> None:
    calls = [Message("assistant", "", tool_calls=(ToolCall("1", "ls", "{}"),)) for _ in range(2)]
    with pytest.raises(TemplateError, match="take turns"):
        text_of(TAKES_TURNS, [Message("user", "u"), *calls])
