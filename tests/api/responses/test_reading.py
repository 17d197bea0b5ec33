"""Items say what chat messages say: the same conversation is the same through either API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.api.conversation import PARTS_REPLACED
from sessiond.api.responses.ids import ItemPlace, item_id, new_response_id, place_of
from sessiond.api.responses.items import Wording
from sessiond.api.responses.reading import messages_of
from sessiond.api.responses.tools import choice, definitions, namespaces
from sessiond.errors import InvalidRequest, UnsupportedContent
from sessiond.metrics import TOOLS_LEFT_OUT
from sessiond.sessions.parts import Called
from sessiond.sessions.transcript import Chat, digest, read_chat, tools_digest
from sessiond.sessions.turn import ToolChoice

Json = dict[str, Any]


def read(items: str | list[Json]) -> Chat:
    return read_chat(messages_of(items))


def roles(items: list[Json]) -> list[str]:
    return [message["role"] for message in messages_of(items)]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **more}


def called(id_: str, name: str = "ls", arguments: str = "{}", **more: Any) -> Json:
    call = {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}
    return {**call, **more}


def result(id_: str, output: Any = "done") -> Json:
    return {"type": "function_call_output", "call_id": id_, "output": output}


words = st.text(min_size=1, max_size=8)
names = st.sampled_from(["ls", "cat", "web.search"])
values = st.dictionaries(words, st.none() | st.integers() | words, max_size=2)
turns = st.lists(
    st.tuples(words, words, st.lists(st.tuples(names, values), max_size=3), st.text(max_size=5)),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(st.text(max_size=8), turns, words)
def test_a_conversation_is_the_same_as_in_chat(front: str, turns: list[Any], question: str) -> None:
    """Reasoning, words, calls and results of several turns. Result: equal digests throughout."""

    chat: list[Json] = [{"role": "system", "content": front}]
    items: list[Json] = [{"role": "developer", "content": [{"type": "input_text", "text": front}]}]
    for number, (asked, told, calls, thought) in enumerate(turns):
        ids = [f"c{number}-{index}" for index in range(len(calls))]
        chat.append({"role": "user", "content": asked})
        items.append(user(asked))
        made = [
            {"id": id_, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
            for id_, (n, a) in zip(ids, calls, strict=True)
        ]
        chat.append({"role": "assistant", "content": told, "tool_calls": made})
        items.append({"type": "reasoning", "summary": [], "content": [_reasoning(thought)]})
        items.append(said(told))
        items += [called(i, n, json.dumps(a)) for i, (n, a) in zip(ids, calls, strict=True)]
        chat += [{"role": "tool", "tool_call_id": id_, "content": "done"} for id_ in ids]
        items += [result(id_, [{"type": "input_text", "text": "done"}]) for id_ in ids]
    chat.append({"role": "user", "content": question})
    items.append(user(question))
    expected, got = read_chat(chat), read(items)
    assert [*map(digest, got.messages)] == [*map(digest, expected.messages)]
    assert [m.tool_call_id for m in got.messages] == [m.tool_call_id for m in expected.messages]
    assert [m.tool_calls for m in got.messages] == [m.tool_calls for m in expected.messages]


def _reasoning(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def test_a_string_is_what_the_user_says() -> None:
    assert read("hi") == read_chat([user("hi")])


def test_items_of_one_reply_are_one_message() -> None:
    items = [
        user("a"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        said("let me "),
        said("look"),
        called("1"),
        called("2"),
        result("2"),
        result("1"),
    ]
    _, reply, *results = read(items).messages
    assert (reply.content, reply.reasoning) == ("let me look", "hm")
    assert [call.id for call in reply.tool_calls] == ["1", "2"]
    assert [message.tool_call_id for message in results] == ["2", "1"]


def test_replies_of_two_responses_are_two_messages() -> None:
    one, two = (ItemPlace(new_response_id(), 0) for _ in range(2))
    items = [user("a"), said("x", id=item_id("msg", one)), said("y", id=item_id("msg", two))]
    assert roles(items) == ["user", "assistant", "assistant"]


def test_calls_of_one_response_stay_together_around_their_results() -> None:
    """Some clients put each result behind its call. Result: one message with both calls."""
    response = new_response_id()
    ids = [item_id("fc", ItemPlace(response, index)) for index in range(2)]
    items = [user("a"), called("1", id=ids[0]), result("1"), called("2", id=ids[1]), result("2")]
    assert roles(items) == ["user", "assistant", "tool", "tool"]
    later = [user("a"), called("1"), result("1"), called("2"), result("2")]
    assert roles(later) == ["user", "assistant", "tool", "assistant", "tool"]


def test_encrypted_reasoning_alone_says_nothing() -> None:
    items = [user("a"), {"type": "reasoning", "summary": [], "encrypted_content": "x"}, said("b")]
    assert roles(items) == ["user", "assistant"]
    assert read(items).messages[1].reasoning is None


def test_custom_tools_in_history_are_calls() -> None:
    custom = {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** Begin"}
    output = {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"}
    _, reply, told = read([user("a"), custom, output, user("b")]).messages[:3]
    assert reply.tool_calls[0].arguments == '{"input":"*** Begin"}'
    assert (told.role, told.content) == ("tool", "ok")


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def test_images_in_history_become_notes_and_are_counted() -> None:
    before = PARTS_REPLACED._value.get()
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "see "}, IMAGE]},
        called("1"),
        result("1", [IMAGE, {"type": "input_file", "file_id": "f"}]),
        said("nice"),
        user("and?"),
    ]
    texts = [message.content for message in read(items).messages]
    assert texts[0] == "see [image left out: this model reads text only]"
    assert texts[2].count("left out") == 2
    assert PARTS_REPLACED._value.get() == before + 3


def test_an_image_in_a_new_message_is_refused() -> None:
    items = [user("a"), said("b"), {"role": "user", "content": [IMAGE]}]
    with pytest.raises(UnsupportedContent) as refusal:
        messages_of(items)
    assert refusal.value.param == "input[2].content[0]"
    with pytest.raises(UnsupportedContent) as refusal:
        messages_of([user("a"), called("1"), result("1", [IMAGE])])
    assert refusal.value.param == "input[2].output[0]"


def test_unknown_items_become_notes_in_history_only() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    shell = {"type": "shell_call_output", "call_id": "1", "output": []}
    texts = [message.content for message in read([user("a"), search, said("b")]).messages]
    assert texts == ["a", "[web_search_call left out: it is not known here]b"]
    with pytest.raises(UnsupportedContent) as refusal:
        messages_of([user("a"), shell])
    assert refusal.value.param == "input[1].type"
    assert roles([user("a"), shell, said("b")]) == ["user", "assistant"]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "input[0].type"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "nobody", "content": "x"}, "input[0].role"),
        ({"role": ["user"], "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 1}, "input[0].content"),
        ({"role": "user", "content": [1]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"type": "function_call", "name": "x", "arguments": "{}"}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "x", "arguments": "{}"}, "input[0].name"),
        ({"type": "function_call", "call_id": "x", "name": "y"}, "input[0].arguments"),
        ({"type": "function_call_output", "call_id": "x"}, "input[0].output"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "reasoning", "content": "x"}, "input[0].content"),
        ({"type": "reasoning", "content": [{"text": 1}]}, "input[0].content[0].text"),
        ({"type": "custom_tool_call", "call_id": "x", "name": "y"}, "input[0].input"),
    ],
)
def test_what_is_wrong_is_named(item: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        messages_of([item])
    assert refusal.value.param == param


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
kinds = st.sampled_from(
    ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "x_call"]
)
fields = st.sampled_from(
    ["role", "content", "summary", "call_id", "name", "arguments", "output", "id", "input"]
)
strange = st.builds(
    lambda kind, rest: {**rest, "type": kind}, kinds, st.dictionaries(fields, anything)
)


@settings(deadline=None)
@given(st.lists(strange, max_size=4))
def test_no_item_is_more_than_a_400(items: list[Json]) -> None:
    try:
        messages = messages_of(items)
        if messages:
            read_chat(messages)
    except InvalidRequest as refusal:
        assert refusal.param is not None


@given(st.sampled_from(["rs", "msg", "fc"]), st.integers(0, 9999), st.booleans())
def test_an_items_id_says_where_it_is(kind: str, index: int, is_input: bool) -> None:
    place = ItemPlace(new_response_id(), index, is_input)
    assert place_of(item_id(kind, place)) == place


@given(st.text(max_size=60) | st.integers())
def test_other_ids_say_nothing(id_: object) -> None:
    assert place_of(id_) is None


FUNCTION = {"type": "function", "name": "ls", "parameters": {"type": "object"}, "strict": True}


def test_functions_are_those_of_chat_and_other_tools_are_left_out() -> None:
    before = TOOLS_LEFT_OUT._value.get()
    others: list[Json] = [{"type": "web_search"}, {"type": "custom", "name": "x"}, {}]
    known = definitions([*others, FUNCTION, {"type": "local_shell"}])
    assert TOOLS_LEFT_OUT._value.get() == before + 4
    same = {"name": "ls", "parameters": {"type": "object"}, "strict": True}
    chat = read_chat([user("a")], [{"type": "function", "function": same}])
    assert tools_digest(read_chat([user("a")], known).tools) == tools_digest(chat.tools)


def test_functions_in_a_namespace_are_known_by_their_names_and_called_in_it() -> None:
    """As Codex sends those of its sub-agents. One outside that is named the same comes first."""
    inner: list[Json] = [{"type": "function", "name": name} for name in ("spawn", "ls")]
    space: Json = {"type": "namespace", "name": "agents", "tools": [*inner, {"type": "x"}, 7]}
    before = TOOLS_LEFT_OUT._value.get()
    known = definitions([FUNCTION, space])
    assert [one["function"]["name"] for one in known] == ["ls", "spawn"]
    assert TOOLS_LEFT_OUT._value.get() == before + 2
    assert namespaces([FUNCTION, space]) == {"spawn": "agents"}
    wording = Wording(new_response_id(), namespaces=namespaces([FUNCTION, space]))
    spawn, listed = wording.items([Called("1", "spawn", "{}"), Called("2", "ls", "{}")])
    assert (spawn["name"], spawn["namespace"]) == ("spawn", "agents")
    assert "namespace" not in listed


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "ls"}, ToolChoice("required", "ls")),
        ({"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]}, ToolChoice("auto")),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [FUNCTION]},
            ToolChoice("required", "ls"),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [FUNCTION, FUNCTION]},
            ToolChoice("required"),
        ),
    ],
)
def test_choices_of_tools(asked: Any, expected: ToolChoice) -> None:
    assert choice(asked, True, definitions([FUNCTION])) == expected


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "function", "name": "rm"},
        {"type": "function"},
        {"type": "web_search"},
        {"type": ["x"]},
        {},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(asked: Json) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        choice(asked, True, definitions([FUNCTION]))
    assert str(refusal.value.param).startswith("tool_choice")
