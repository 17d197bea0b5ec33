"""What means the same is the same line; a changed word, role or argument never is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.errors import InvalidRequest, UnsupportedContent
from sessiond.sessions.transcript import (
    Message,
    Text,
    canonical_arguments,
    digest,
    equal,
    read_chat,
    read_message,
    read_text,
    read_tool,
    tools_digest,
)

any_text = st.text(st.characters(codec=None), max_size=20)
numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(any_text, json_values, max_size=4)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
calls = st.builds(
    lambda name, args: {
        "id": "x",
        "type": "function",
        "function": {"name": name, "arguments": args},
    },
    any_text,
    arguments,
)
messages = st.builds(
    lambda role, content, tool_calls: {"role": role, "content": content, "tool_calls": tool_calls},
    roles,
    any_text,
    st.lists(calls, max_size=2),
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(one) for one in value] if isinstance(value, list) else value


@given(arguments, any_text)
def test_canonical_arguments_are_a_fixed_point(value: dict[str, Any], text: str) -> None:
    for start in (value, text, json.dumps(value)):
        once = canonical_arguments(start)
        assert canonical_arguments(once) == once
        once.encode()


@given(arguments)
def test_arguments_as_text_or_object_in_any_order_are_equal(value: dict[str, Any]) -> None:
    expected = canonical_arguments(value)
    assert canonical_arguments(json.dumps(value, indent=3)) == expected
    assert canonical_arguments(json.dumps(reordered(value), ensure_ascii=False)) == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [('{"n": 1.0}', '{"n":1}'), ("", "{}"), (None, "{}"), ("  ", {}), ('"\\u00e4"', '"ä"')],
)
def test_equal_arguments(a: object, b: object) -> None:
    assert canonical_arguments(a) == canonical_arguments(b)


@pytest.mark.parametrize(
    "text", ["{", "ls -l", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, "9" * 5000]
)
def test_text_that_is_no_json_stays_as_it_is(text: str) -> None:
    assert canonical_arguments(text) == text


@pytest.mark.parametrize(
    ("a", "b"), [('{"n": 1}', '{"n": 2}'), ('{"n": 1}', '{"n": "1"}'), ("[1,2]", "[2,1]")]
)
def test_different_arguments(a: str, b: str) -> None:
    assert canonical_arguments(a) != canonical_arguments(b)


@given(messages, st.data())
def test_ways_to_write_a_message_match(data: dict[str, Any], draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data["content"])))
    parts = [
        {"type": "text", "text": data["content"][:cut], "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": data["content"][cut:]},
    ]
    as_strings = [
        {
            "id": "other",
            "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])},
        }
        for c in data["tool_calls"]
    ]
    variant = {
        **reordered(data), "content": parts, "tool_calls": as_strings,
        "reasoning_content": "hm", "unknown": 1, "tool_call_id": "z",
    }  # fmt: skip
    # A surrogate pair may be cut in two by the parts; then the text is another one.
    if not any("\ud800" <= c <= "\udfff" for c in data["content"]):
        assert equal(read_message(data), read_message(variant))


@given(messages, messages)
def test_only_messages_that_mean_the_same_match(a: dict[str, Any], b: dict[str, Any]) -> None:
    one, other = read_message(a), read_message(b)
    same_text = one.content == other.content or (
        one.role == "assistant" and one.content.strip() == other.content.strip()
    )
    same_calls = [(c.name, c.arguments) for c in one.tool_calls] == [
        (c.name, c.arguments) for c in other.tool_calls
    ]
    assert equal(one, other) == (one.role == other.role and same_text and same_calls)


@given(messages, st.data())
def test_any_change_is_seen(data: dict[str, Any], draw: st.DataObject) -> None:
    before = read_message(data)
    role = draw.draw(roles.filter(lambda role: role != data["role"]))
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    other = {"function": {"name": "f", "arguments": {"a": 2}}}
    changed = [
        (data, {**data, "role": role}),
        (data, {**data, "content": data["content"] + "x"}),
        (data, {**data, "content": "x" + data["content"]}),
        (data, {**data, "tool_calls": [*data["tool_calls"], call]}),
        ({**data, "tool_calls": [call]}, {**data, "tool_calls": [other]}),
    ]
    for a, b in changed:
        assert not equal(read_message(a), read_message(b))
    assert equal(before, read_message(data))


def test_replies_match_but_for_white_space_around_them_and_nothing_else_does() -> None:
    assert equal(Message("assistant", " a b\n"), Message("assistant", "a b"))
    assert not equal(Message("assistant", "a  b"), Message("assistant", "a b"))
    assert not equal(Message("user", "a "), Message("user", "a"))


def test_names_tell_users_apart_but_not_tools() -> None:
    assert not equal(Message("user", "a", name="ann"), Message("user", "a", name="bob"))
    assert equal(Message("tool", "a", name="ls"), Message("tool", "a"))


def test_parts_of_a_digest_cannot_be_shifted() -> None:
    assert digest(Message("user", "ab", name="c")) != digest(Message("user", "a", name="bc"))


def test_the_developer_is_the_system() -> None:
    assert read_message({"role": "developer", "content": "x"}) == Message("system", "x")


def test_half_surrogates_become_text_that_can_be_stored() -> None:
    said = read_message({"role": "user", "content": "a\ud83d"})
    assert said.content == "a\ufffd"
    assert read_text("\ud83d\ude00") == Text("\U0001f600")


def test_keys_that_become_the_same_are_one_key() -> None:
    once = canonical_arguments('{"\\ud800": 1, "\\ud801": 2}')
    assert once == canonical_arguments(once) == '{"\ufffd":2}'


def test_tools_are_a_set_of_definitions_and_keep_the_clients_order_of_keys() -> None:
    a = {"type": "function", "function": {"name": "a", "parameters": {"x": 1, "b": 2}}}
    b = {"type": "function", "function": {"name": "b"}}
    assert read_tool(a) == json.dumps(a, separators=(",", ":"))
    one = tools_digest([read_tool(a), read_tool(b)])
    assert tools_digest([read_tool({**b, "cache_control": {}}), read_tool(reordered(a))]) == one
    assert tools_digest([read_tool(a)]) != one
    assert tools_digest([]) != tools_digest(["{}"])


def test_a_chat_is_read_whole() -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "ls", "arguments": {"b": 1, "a": 2}},
    }
    chat = read_chat(
        [
            {"role": "user", "content": "hi", "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
            {"role": "tool", "content": [{"type": "text", "text": "out"}], "tool_call_id": "1"},
        ],
        [{"type": "function"}],
        {"enable_thinking": False, "a": 1},
    )
    assert chat.messages[0] == Message("user", "hi", name="ann")
    assert chat.messages[1].tool_calls[0].arguments == '{"a":2,"b":1}'
    assert (chat.messages[1].content, chat.messages[1].reasoning) == ("", "hm")
    assert chat.messages[2] == Message("tool", "out", tool_call_id="1")
    assert chat.tools == ('{"type":"function"}',)
    assert chat.template_options == (("a", 1), ("enable_thinking", False))


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "wizard"}], "messages[0].role"),
        ([{"role": ["user"]}], "messages[0].role"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "name": 1}], "messages[0].name"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
def test_bad_input_names_the_field(said: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_chat(said)
    assert refused.value.param == param


def test_a_part_that_is_no_text_is_unsupported() -> None:
    with pytest.raises(UnsupportedContent):
        read_message({"role": "user", "content": [{"type": "input_audio"}]})
