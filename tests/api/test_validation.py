"""Bad input is refused with an error that names the field, and reaches nobody."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sessiond.engine.sampling import Ending, Sampling
from sessiond.sessions.transcript import Chat, Message, Text, ToolCall
from tests.api.scripted import ScriptedTurns

HI = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CALL = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"b": 1, "a":2}'}}

BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [*HI, {"role": "robot", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [*HI, {"role": "assistant", "tool_calls": [{}]}]},
        "messages[1].tool_calls[0].function",
    ),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "7"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**20}, "max_tokens"),
    ({"max_completion_tokens": -3}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"repeat_last_n": -1}, "repeat_last_n"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": []}, "logit_bias"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": 5}, "stop"),
    ({"n": 2}, "n"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"tools": {}}, "tools"),
    ({"tools": ["ls"]}, "tools[0]"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"session_id": ""}, "session_id"),
    ({"session_id": "a/b"}, "session_id"),
    ({"session_id": 5}, "session_id"),
    ({"user": 5}, "user"),
]
BAD_PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": [1, 2]}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"max_tokens": -1}, "max_tokens"),
]


def refused(response: httpx.Response, param: str | None, turns: ScriptedTurns) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert turns.requests == []
    return error


@pytest.mark.parametrize(("change", "param"), BAD_CHATS, ids=[str(b)[:60] for b, _ in BAD_CHATS])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_chat_names_its_field(
    client: httpx.Client, turns: ScriptedTurns, change: dict[str, Any], param: str, stream: bool
) -> None:
    messages = {} if change == {} else {"messages": HI}
    body = {**messages, "stream": stream, **change}
    refused(client.post("/v1/chat/completions", json=body), param, turns)


@pytest.mark.parametrize(("change", "param"), BAD_PROMPTS, ids=[str(b) for b, _ in BAD_PROMPTS])
def test_a_bad_prompt_names_its_field(
    client: httpx.Client, turns: ScriptedTurns, change: dict[str, Any], param: str
) -> None:
    refused(client.post("/v1/completions", json={"prompt": "hi", **change}), param, turns)


@pytest.mark.parametrize(
    "body", [b"{bad", b"", b"[1]", b"5", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_refused(
    client: httpx.Client, turns: ScriptedTurns, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    refused(client.post("/v1/chat/completions", content=body, headers=headers), None, turns)


def test_an_error_does_not_quote_what_was_sent(client: httpx.Client, turns: ScriptedTurns) -> None:
    body = {"messages": [{"role": "user", "content": "CANARY"}], "max_tokens": "CANARY"}
    assert "CANARY" not in client.post("/v1/chat/completions", json=body).text


def test_unknown_fields_are_normal_and_known_ones_arrive(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    body = {
        "model": "gpt-9",
        "messages": [
            {
                "role": "developer",
                "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}],
            },
            {"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "ok", "tool_call_id": "c"},
        ],
        "tools": [{"type": "function", "function": {"name": "ls", "strict": True}}],
        "max_tokens": 9,
        "max_completion_tokens": 7,
        "temperature": 0,
        "top_k": -1,
        "seed": 5,
        "logit_bias": {"12": -100},
        "stop": "END",
        "logprobs": True,
        "ignore_eos": True,
        "chat_template_kwargs": {"enable_thinking": False},
        "store": True,
        "reasoning_effort": "high",
        "thinking": {"type": "adaptive"},
        "n": None,
    }
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    request = turns.requests[0]
    assert request.content == Chat(
        (
            Message("system", "be brief"),
            Message("user", "hi"),
            Message("assistant", "", tool_calls=(ToolCall("c", "ls", '{"a":2,"b":1}'),)),
            Message("tool", "ok", tool_call_id="c"),
        ),
        ('{"type":"function","function":{"name":"ls","strict":true}}',),
        (("enable_thinking", False), ("reasoning_effort", "high")),
    )
    assert request.sampling == Sampling(temperature=0, top_k=0, seed=5, logit_bias=((12, -100.0),))
    assert request.ending == Ending(7, ("END",), True)
    assert request.logprobs == 0


def test_defaults_are_those_of_the_engine(client: httpx.Client, turns: ScriptedTurns) -> None:
    client.post("/v1/chat/completions", json={"messages": HI, "seed": -1, "stop": None})
    client.post("/v1/completions", json={"prompt": "héllo", "stop": ["a", "b"]})
    chat, text = turns.requests
    assert (chat.sampling, chat.ending, chat.logprobs) == (Sampling(), Ending(), None)
    assert (text.content, text.ending) == (Text("héllo"), Ending(None, ("a", "b")))


def test_an_image_in_older_history_becomes_a_note_and_is_counted(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    """1. An image stands before the last assistant message. 2. The same after it.

    Result: the first is answered with a note in its place and counted; the second is refused.
    """
    old = [
        {"role": "user", "content": [{"type": "text", "text": "see "}, IMAGE]},
        {"role": "assistant", "content": "nice"},
    ]
    new = {"role": "user", "content": [IMAGE]}
    before = replaced(client)
    rejected = client.post("/v1/chat/completions", json={"messages": [*old, new]})
    refused(rejected, "messages[2].content[0]", turns)
    response = client.post("/v1/chat/completions", json={"messages": [*old, *HI]})
    assert response.status_code == 200
    content = turns.requests[0].content
    assert isinstance(content, Chat)
    assert content.messages[0].content == "see [image left out: this model reads text only]"
    assert replaced(client) == before + 1


def replaced(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("sessiond_unsupported_parts_total ")]
    return float(counts[0].split()[1])


def test_half_a_surrogate_pair_does_not_lose_the_chat(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    body = b'{"messages": [{"role": "user", "content": "cut \\ud83d"}]}'
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/v1/chat/completions", content=body, headers=headers).status_code == 200
    content = turns.requests[0].content
    assert isinstance(content, Chat)
    assert content.messages[0].content == "cut \ufffd"
