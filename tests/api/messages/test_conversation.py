"""What an Anthropic request means: the same as OpenAI's request with the same content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.api.conversation import PARTS_REPLACED
from sessiond.api.conversation import conversation as openais
from sessiond.api.messages.conversation import conversation
from sessiond.api.messages.events import SIGNATURE, content
from sessiond.api.messages.tools import definitions
from sessiond.errors import InvalidRequest, UnsupportedContent
from sessiond.metrics import TOOLS_LEFT_OUT
from sessiond.sessions.parts import Called, Said, Thought
from sessiond.sessions.transcript import Chat, Message, ToolCall, digest, tools_digest

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
NOTE = "[image left out: this model reads text only]"
LS = {"name": "ls", "description": "Lists.", "input_schema": {"type": "object", "properties": {}}}


def text(words: str, **more: object) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def read(messages: list[dict[str, Any]], **more: Any) -> Chat:
    tools = definitions(more.get("tools", ()))
    return conversation({"messages": messages, **more}, tools, {})


@dataclass(frozen=True)
class Say:
    """What happens in a conversation, as both APIs write it."""

    role: str
    words: tuple[str, ...]
    thought: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    results: tuple[str, ...] = ()

    def openai(self) -> list[dict[str, Any]]:
        results = [
            {"role": "tool", "tool_call_id": f"call_{i}", "content": told}
            for i, told in enumerate(self.results)
        ]
        said: dict[str, Any] = {"role": self.role, "content": [text(w) for w in self.words]}
        if self.thought:
            said["reasoning_content"] = self.thought
        if self.calls:
            said["tool_calls"] = [
                {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}
                for i, (n, a) in enumerate(self.calls)
            ]
        return [*results, said] if self.words or not results else results

    def anthropic(self) -> dict[str, Any]:
        if len(self.words) == 1 and not (self.thought or self.calls or self.results):
            return {"role": self.role, "content": self.words[0]}
        thought = {"type": "thinking", "thinking": self.thought, "signature": SIGNATURE}
        blocks = [
            *([thought] if self.thought else []),
            *(text(words, cache_control={"type": "ephemeral"}) for words in self.words),
            *(
                {"type": "tool_use", "id": f"toolu_call_{i}", "name": name, "input": arguments}
                for i, (name, arguments) in enumerate(self.calls)
            ),
            *(
                {"type": "tool_result", "tool_use_id": f"toolu_call_{i}", "content": [text(told)]}
                for i, told in enumerate(self.results)
            ),
        ]
        return {"role": self.role, "content": blocks}


words = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
calls = st.tuples(st.sampled_from(["ls", "read"]), st.dictionaries(words, values, max_size=3))
said = st.lists(words, max_size=3).map(tuple)
results = st.lists(words, max_size=2).map(tuple)
users = st.builds(Say, st.just("user"), said, results=results)
assistants = st.builds(
    Say, st.just("assistant"), said, words, st.lists(calls, max_size=2).map(tuple)
)
talks = st.lists(users | assistants, min_size=1, max_size=6)
names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=4)


@settings(max_examples=50)
@given(talks, words, names, st.randoms())
def test_the_same_conversation_through_both_apis(
    talk: list[Say], system: str, tools: list[str], order: Any
) -> None:
    """Result: equal messages, equal digests, and equal tools, however they are ordered."""
    described = [{"name": name, "description": name * 3, "schema": {"a": name}} for name in tools]
    ours = [
        {"name": t["name"], "description": t["description"], "input_schema": t["schema"]}
        for t in described
    ]
    theirs = [
        {
            "type": "function",
            "function": {
                "parameters": t["schema"],
                "name": t["name"],
                "description": t["description"],
            },
        }
        for t in described
    ]
    order.shuffle(ours)
    front = [{"role": "system", "content": system}] if system else []
    openai = [*front, *(message for say in talk for message in say.openai())]
    other = openais({"messages": openai, "tools": theirs})
    own = read([say.anthropic() for say in talk], system=system, tools=ours)
    assert own.messages == other.messages
    assert list(map(digest, own.messages)) == list(map(digest, other.messages))
    assert tools_digest(own.tools) == tools_digest(other.tools)


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        ("<think>\nHm.\n</think>\n\nHello.", (Thought("Hm."), Said("Hello."))),
        ("Hello.\n", (Said("Hello.\n"),)),
        (
            'Look:\n<tool_call>\n{"name": "ls", "arguments": {"b": 1, "a": "x"}}\n</tool_call>',
            (Said("Look:\n"), Called("call_9", "ls", '{"b": 1, "a": "x"}')),
        ),
        (
            '<tool_call>{"name": "ls", "arguments": {}}</tool_call>',
            (Called("call_9", "ls", "{}"),),
        ),
    ],
)
@pytest.mark.parametrize("thoughts", [True, False])
def test_a_reply_that_comes_back_is_the_reply(
    raw: str, parts: Sequence[Any], thoughts: bool
) -> None:
    blocks = orjson.loads(orjson.dumps(content(parts, thoughts=thoughts)))
    back = read([{"role": "user", "content": "hi"}, {"role": "assistant", "content": blocks}])
    assert digest(back.messages[1]) == digest(Message("assistant", raw))


def test_calls_keep_their_own_ids() -> None:
    called = content([Called("abc123XYZ", "ls", "{}")], thoughts=True)
    (block,) = orjson.loads(orjson.dumps(called))
    assert block["id"] == "toolu_abc123XYZ"
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
    chat = read([{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}])
    assert chat.messages == (
        Message("assistant", "", tool_calls=(ToolCall("abc123XYZ", "ls", "{}"),)),
        Message("tool", "ok", tool_call_id="abc123XYZ"),
    )


def test_results_come_before_what_the_user_says() -> None:
    blocks = [
        text("and "),
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("a"), text("b")]},
        text("then?"),
        {"type": "tool_result", "tool_use_id": "toolu_2"},
        {"type": "tool_result", "tool_use_id": "toolu_3", "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_4", "is_error": True, "content": "no file"},
    ]
    told = [(m.role, m.content) for m in read([{"role": "user", "content": blocks}]).messages]
    assert told == [
        ("tool", "ab"),
        ("tool", ""),
        ("tool", "Error"),
        ("tool", "no file"),
        ("user", "and then?"),
    ]


def test_what_claude_code_sends_is_understood() -> None:
    """A line for the provider, marks, a system message in the middle, two replies in a row."""
    header = text("x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;")
    system = [header, text("You are Claude.", cache_control={"type": "ephemeral"})]
    redacted = {"type": "redacted_thinking", "data": "xx"}
    chat = read(
        [
            {"role": "user", "content": [text("hi", cache_control={"type": "ephemeral"})]},
            {"role": "assistant", "content": [redacted, text("one")]},
            {"role": "assistant", "content": "two"},
            {"role": "system", "content": [text("The date changed.")]},
            {"role": "user", "content": "go on"},
        ],
        system=system,
        tools=[{**LS, "cache_control": {"type": "ephemeral"}}],
    )
    assert [(m.role, m.content) for m in chat.messages] == [
        ("system", "You are Claude."),
        ("user", "hi"),
        ("assistant", "one"),
        ("assistant", "two"),
        ("system", "The date changed."),
        ("user", "go on"),
    ]
    assert "cache_control" not in chat.tools[0]


@pytest.mark.parametrize(
    "system", [None, "", [], [text("x-anthropic-billing-header: a=b;")], [text("")]]
)
def test_an_empty_system_prompt_is_none(system: Any) -> None:
    chat = read([{"role": "user", "content": "hi"}], system=system)
    assert chat.messages == (Message("user", "hi"),)


def test_older_images_become_notes_and_new_ones_are_refused() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("see"), IMAGE]}
    old = {"role": "user", "content": [result, IMAGE]}
    replaced = PARTS_REPLACED._value.get()
    search = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    chat = read([old, {"role": "assistant", "content": [search, text("ok")]}])
    assert [m.content for m in chat.messages] == [
        f"see{NOTE}",
        NOTE,
        "[part left out: this model reads text only]ok",
    ]
    assert PARTS_REPLACED._value.get() - replaced == 3
    with pytest.raises(UnsupportedContent) as refusal:
        read([{"role": "assistant", "content": "hi"}, old])
    assert refusal.value.param == "messages[1].content[0].content[1]"


def test_a_document_of_plain_text_is_read() -> None:
    document = {"type": "document", "source": {"type": "text", "data": "Words."}}
    assert read([{"role": "user", "content": [document]}]).messages[0].content == "Words."
    pdf = {"type": "document", "source": {"type": "base64", "data": "AA=="}}
    with pytest.raises(UnsupportedContent):
        read([{"role": "user", "content": [pdf]}])


def test_tools_of_anthropics_servers_are_left_out_and_counted() -> None:
    ignored = TOOLS_LEFT_OUT._value.get()
    assert definitions([{"type": "web_search_20250305", "name": "web_search"}, LS]) == (
        {
            "type": "function",
            "function": {
                "name": "ls",
                "description": "Lists.",
                "parameters": LS["input_schema"],
            },
        },
    )
    assert TOOLS_LEFT_OUT._value.get() - ignored == 1


CALL = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}


@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("user", "x", ""),
        ("user", {"text": "x"}, ".type"),
        ("user", {"type": 5}, ".type"),
        ("user", {"type": "text"}, ".text"),
        ("user", {"type": "text", "text": 5}, ".text"),
        ("user", {"type": "tool_use"}, ""),
        ("user", {**RESULT, "tool_use_id": None}, ".tool_use_id"),
        ("user", {**RESULT, "content": 5}, ".content"),
        ("user", {**RESULT, "content": ["x"]}, ".content[0]"),
        ("user", {**RESULT, "content": [{"type": "text"}]}, ".content[0].text"),
        ("assistant", {**CALL, "name": 5}, ".name"),
        ("assistant", {**CALL, "id": None}, ".id"),
        ("assistant", {**CALL, "input": "x"}, ".input"),
        ("assistant", {"type": "thinking"}, ".thinking"),
    ],
)
def test_a_bad_block_is_named(role: str, block: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read([{"role": role, "content": [text("x"), block]}])
    assert refusal.value.param == f"messages[0].content[1]{param}"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"input_schema": {}}, "tools[1].name"),
        ({"name": "", "input_schema": {}}, "tools[1].name"),
        ({"name": "ls", "input_schema": None}, "tools[1].input_schema"),
    ],
)
def test_a_bad_tool_is_named(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        definitions([LS, tool])
    assert refusal.value.param == param
