"""What is new is cut out of the full rendering exactly, or not at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.fake import FakeModel
from sessiond.engine.memory import Tokens
from sessiond.errors import TemplateError
from sessiond.sessions.transcript import Chat, Message, ToolCall, canonical_arguments, read_tool

TEMPLATES = Path(__file__).parent.parent / "templates"
NOW = datetime(2025, 11, 29, 10, 2, tzinfo=UTC)
PLAIN = ["chatml", "llama3", "mistral", "gemma", "qwen"]
WITH_TOOLS = ["chatml", "qwen"]
TOOL = read_tool({"type": "function", "function": {"name": "ls", "parameters": {}}})


def renderer(family: str) -> TemplateRenderer:
    return custom((TEMPLATES / f"{family}.jinja").read_text())


def custom(source: str) -> TemplateRenderer:
    return TemplateRenderer(FakeModel(), ChatTemplate(source))


def decode(tokens: Tokens) -> str:
    return b"".join(FakeModel().piece(int(token), special=True) for token in tokens).decode()


RENDERERS = {family: renderer(family) for family in [*PLAIN, "mistral_tools"]}

words = st.text(st.sampled_from("abc xyzäß\n.<>|{}"), max_size=12)
replies = st.builds(lambda text: f"r{text}", words)


@st.composite
def plain_chats(draw: st.DrawFn) -> tuple[Chat, int]:
    """An alternating chat, and the number of messages up to one of its replies."""
    front = [Message("system", draw(words))] if draw(st.booleans()) else []
    rounds = draw(st.integers(1, 4))
    body = [
        message
        for _ in range(rounds)
        for message in (Message("user", draw(words)), Message("assistant", draw(replies)))
    ]
    matched = len(front) + 2 * draw(st.integers(1, rounds))
    return Chat((*front, *body, Message("user", draw(words)))), matched


@st.composite
def tool_chats(draw: st.DrawFn) -> tuple[Chat, int]:
    call = ToolCall("c1", "ls", canonical_arguments({"path": draw(words)}))
    history = (
        Message("system", draw(words)),
        Message("user", draw(words)),
        Message("assistant", draw(words), tool_calls=(call,)),
        Message("tool", draw(words), tool_call_id="c1"),
        Message("assistant", draw(replies), reasoning=draw(st.sampled_from([None, "hm"]))),
        Message("user", draw(words)),
    )
    return Chat(history, (TOOL,)), draw(st.sampled_from([3, 5]))


def suffix(family: str, chat: Chat, matched: int) -> str | None:
    tokens = RENDERERS[family].suffix(chat, matched, NOW)
    return None if tokens is None else decode(tokens)


@pytest.mark.parametrize("family", PLAIN)
@given(drawn=plain_chats())
def test_the_suffix_is_the_rest_after_the_reply(family: str, drawn: tuple[Chat, int]) -> None:
    chat, matched = drawn
    rest = suffix(family, chat, matched)
    assert rest is not None
    full = decode(RENDERERS[family].full(chat, NOW))
    assert full.endswith(rest)
    head = full.removesuffix(rest)
    # Templates that trim end the reply earlier than the client's text does.
    reply = chat.messages[matched - 1].content
    assert head.endswith((reply, reply.strip()))
    assert len(head) < len(full)


@given(drawn=plain_chats())
def test_path_reply_and_suffix_are_the_whole_conversation(drawn: tuple[Chat, int]) -> None:
    chat, matched = drawn
    asked = replace(chat, messages=chat.messages[: matched - 1])
    path = decode(RENDERERS["chatml"].full(asked, NOW)) + chat.messages[matched - 1].content
    assert path + str(suffix("chatml", chat, matched)) == decode(
        RENDERERS["chatml"].full(chat, NOW)
    )


@pytest.mark.parametrize("family", WITH_TOOLS)
@given(drawn=tool_chats())
def test_tool_calls_are_part_of_the_reply_and_not_of_the_suffix(
    family: str, drawn: tuple[Chat, int]
) -> None:
    chat, matched = drawn
    rest = suffix(family, chat, matched)
    assert rest is not None
    head = decode(RENDERERS[family].full(chat, NOW)).removesuffix(rest)
    last = "</tool_call>" if matched == 3 else chat.messages[matched - 1].content
    assert head.endswith(last)
    assert rest.startswith("<|im_end|>\n")
    assert "<tool_call>" not in rest


def test_a_suffix_does_not_depend_on_reasoning_dropped_before_it() -> None:
    said = Message("assistant", "four", reasoning="2 + 2")
    chat = Chat((Message("user", "2+2?"), said, Message("user", "sure?")))
    expected = "<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    assert suffix("qwen", chat, 2) == expected
    unread = Message("assistant", "<think>\n2 + 2\n</think>\n\nfour")
    assert suffix(
        "qwen", replace(chat, messages=(chat.messages[0], unread, chat.messages[2])), 2
    ) == (expected)


def test_template_options_reach_the_generation_prompt() -> None:
    chat = Chat(
        (Message("user", "a"), Message("assistant", "b"), Message("user", "c")),
        template_options=(("enable_thinking", False),),
    )
    assert str(suffix("qwen", chat, 2)).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("tools", [(), (TOOL,)])
@pytest.mark.parametrize("system", [(), (Message("system", "be brief"),)])
def test_no_cut_where_the_front_is_repeated(
    tools: tuple[str, ...], system: tuple[Message, ...]
) -> None:
    talk = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    chat = Chat((*system, *talk), tools)
    rest = suffix("mistral_tools", chat, len(system) + 2)
    assert rest == (None if tools or system else "<|im_end|>[INST] c[/INST]")


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content | upper }}",
        "{{ m.content }}{{ m.content }}",
        "{{ m.content if m.role == 'user' }}",
        "{{ m.content }}{{ m.content | length }}",
    ],
    ids=["changed", "twice", "left out", "measured"],
)
def test_no_cut_where_the_reply_is_not_rendered_as_it_is(content: str) -> None:
    one = custom(f"{{% for m in messages %}}<{content}>{{% endfor %}}")
    chat = Chat((Message("user", "a"), Message("assistant", "b"), Message("user", "c")))
    assert one.suffix(chat, 2, NOW) is None


def test_no_cut_where_a_turn_with_tool_calls_ends_otherwise() -> None:
    one = custom(
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}"
        "{{ '<call>' if m.tool_calls else '<end>' }}{% endfor %}"
    )
    called = Message("assistant", "b", tool_calls=(ToolCall("1", "ls", "{}"),))
    chat = Chat((Message("user", "a"), called, Message("tool", "c")))
    assert one.suffix(chat, 2, NOW) is None
    plain = replace(chat, messages=(chat.messages[0], Message("assistant", "b")))
    assert one.suffix(plain, 2, NOW) is not None


@pytest.mark.parametrize("matched", [0, 1, 3, 4])
def test_no_cut_after_anything_but_a_reply(matched: int) -> None:
    chat = Chat((Message("user", "a"), Message("assistant", "b"), Message("user", "c")))
    assert suffix("chatml", chat, matched) is None


def test_arguments_reach_the_template_parsed_and_reasoning_by_its_name() -> None:
    one = custom(
        "{% for m in messages %}{{ m.reasoning_content }}|{{ m.name }}|{{ m.tool_call_id }}|"
        "{% for c in m.tool_calls %}{{ c.function.arguments.path }}{{ c.id }}{% endfor %};"
        "{% endfor %}"
        "{{ tools[0].function.name }}"
    )
    called = Message(
        "assistant", "", tool_calls=(ToolCall("7", "ls", '{"path":"/x"}'),), reasoning="why"
    )
    chat = Chat((called, Message("tool", "out", name="ls", tool_call_id="7")), (TOOL,))
    assert decode(one.full(chat, NOW)) == "why|||/x7;|ls|7|;ls"


def test_arguments_that_are_no_object_stay_text() -> None:
    one = custom("{{ messages[0].tool_calls[0].function.arguments }}")
    chat = Chat((Message("assistant", "", tool_calls=(ToolCall("", "ls", "/tmp -l"),)),))
    assert decode(one.full(chat, NOW)) == "/tmp -l"


def test_a_refusal_of_the_template_goes_to_the_client() -> None:
    with pytest.raises(TemplateError, match="must alternate"):
        RENDERERS["mistral"].full(Chat((Message("assistant", "a"), Message("user", "b"))), NOW)


def test_without_a_template_the_way_out_is_named() -> None:
    with pytest.raises(TemplateError) as refused:
        TemplateRenderer(FakeModel(), None).full(Chat((Message("user", "a"),)), NOW)
    assert "--model-chat-template-file FILE" in refused.value.hint


def test_special_tokens_are_recognised_in_prompts() -> None:
    tokens = RENDERERS["chatml"].text("<|im_start|>x", first=True)
    assert len(tokens) == 2
