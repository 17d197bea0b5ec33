"""Messages as Anthropic's own client reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import pytest

from sessiond.api.routing import ApiConfig
from sessiond.config.presets import Preset
from sessiond.engine.sampling import Ending, Sampling
from sessiond.errors import ContextLengthExceeded, PoolFull, QueueFull, Unavailable
from sessiond.sessions.parts import Called, Said, Thought
from sessiond.sessions.transcript import Chat, Message
from sessiond.sessions.turn import Miss, ToolChoice
from tests.api.scripted import HEALTH, REPORT, ScriptedTurns
from tests.api.serving import served

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}}]
ASK: Any = {"model": "claude-x", "max_tokens": 4096, "messages": HI}
PARTS = (Thought("Hm."), Said("I look."), Called("c1", "ls", '{"path": "/"}'))


def test_a_whole_message(claude: anthropic.Anthropic, turns: ScriptedTurns) -> None:
    raw = claude.messages.with_raw_response.create(**ASK)
    assert raw.headers["x-session-id"] == "unnamed-1"
    told = raw.parse()
    assert (told.type, told.role, told.model) == ("message", "assistant", "scripted")
    assert told.id.startswith("msg_")
    assert [block.to_dict() for block in told.content] == [{"type": "text", "text": "Hello wörld"}]
    assert (told.stop_reason, told.stop_sequence) == ("end_turn", None)
    usage = told.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (7, 4)
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, 3)
    extra = told.model_extra or {}
    assert extra["timings"]["cache_n"] == 4
    assert (extra["sessiond"]["session"], extra["sessiond"]["saved"]) == ("unnamed-1", True)


def test_a_streamed_message(claude: anthropic.Anthropic, turns: ScriptedTurns) -> None:
    """Result: the client's own accumulator makes the same message of it as comes in one piece."""
    turns.parts = PARTS
    with claude.messages.stream(**ASK, tools=TOOLS) as stream:
        seen = [event.type for event in stream]
        streamed = stream.get_final_message()
    whole = claude.messages.create(**ASK, tools=TOOLS)
    assert seen[0] == "message_start"
    assert seen[-1] == "message_stop"
    assert [b.to_dict() for b in streamed.content] == [b.to_dict() for b in whole.content]
    thinking, text, call = whole.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == ("Hm.", True)
    assert text.type == "text"
    assert text.text == "I look."
    assert call.type == "tool_use"
    assert (call.id, call.name, call.input) == ("toolu_c1", "ls", {"path": "/"})
    assert (streamed.stop_reason, whole.stop_reason) == ("tool_use", "tool_use")
    counted = ("input_tokens", "output_tokens", "cache_read_input_tokens")
    for name in counted:
        assert getattr(streamed.usage, name) == getattr(whole.usage, name)


def test_the_answer_goes_back_as_it_came(claude: anthropic.Anthropic, turns: ScriptedTurns) -> None:
    turns.parts = PARTS
    told = claude.messages.create(**ASK, tools=TOOLS)
    result = {"type": "tool_result", "tool_use_id": "toolu_c1", "content": "etc"}
    more: Any = [*HI, told.to_param(), {"role": "user", "content": [result]}]
    claude.messages.create(**{**ASK, "messages": more}, tools=TOOLS)
    content = turns.requests[-1].content
    assert isinstance(content, Chat)
    _, reply, tool = content.messages
    assert (reply.content, reply.reasoning) == ("I look.", "Hm.")
    assert [(call.id, call.name) for call in reply.tool_calls] == [("c1", "ls")]
    assert tool == Message("tool", "etc", tool_call_id="c1")


def test_the_report_is_in_the_message_delta(client: httpx.Client, turns: ScriptedTurns) -> None:
    miss = Miss("system_changed", "The system prompt changed.", 9)
    turns.report = replace(REPORT, miss=miss, stopped_by="END")
    body = {**ASK, "stream": True, "diagnostics": {"previous_message_id": None}}
    answer = client.post("/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    start, delta = told[0]["message"], told[-2]
    assert start["diagnostics"] == {"cache_miss_reason": None}
    assert start["usage"]["cache_read_input_tokens"] == 4
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert delta["sessiond"]["miss"]["cause"] == "system_changed"
    assert delta["diagnostics"]["cache_miss_reason"]["type"] == "system_changed"
    assert delta["timings"]["prompt_n"] == 7
    assert delta["usage"]["output_tokens"] == 3
    assert told[-1] == {"type": "message_stop"}


def test_what_is_asked_arrives(claude: anthropic.Anthropic, turns: ScriptedTurns) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    claude.messages.create(
        **ASK,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        tools=[*TOOLS, {"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "tool", "name": "ls", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "xhigh", "format": {"type": "json_schema", "schema": schema}},
        metadata={"user_id": '{"session_id": "s-1"}'},
        extra_body={
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "context_management": {"edits": []},
            "unknown": 1,
        },
        extra_headers={"X-Session-Policy": "fork", "X-Session-Compact": "allow"},
    )
    (request,) = turns.requests
    assert isinstance(request.content, Chat)
    assert request.content.messages == (Message("system", "Be brief."), Message("user", "hi"))
    assert len(request.content.tools) == 1
    assert dict(request.content.template_options) == {
        "enable_thinking": True,
        "reasoning_effort": "high",
    }
    assert request.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=5)
    assert request.ending == Ending(4096, ("END",))
    assert request.tool_choice == ToolChoice("required", "ls", parallel=False)
    assert json.loads(request.schema or "") == schema
    assert (request.session.name, request.session.agent) == ("s-1", "claude")
    assert (request.policy, request.compact) == ("fork", True)


@pytest.mark.parametrize(
    ("thinking", "options"),
    [
        (None, {}),
        ({"type": "adaptive"}, {}),
        ({"type": "between_tools"}, {}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 2000}, {"enable_thinking": True}),
    ],
)
def test_thinking(
    client: httpx.Client, turns: ScriptedTurns, thinking: Any, options: dict[str, Any]
) -> None:
    assert client.post("/v1/messages", json={**ASK, "thinking": thinking}).status_code == 200
    content = turns.requests[0].content
    assert isinstance(content, Chat)
    assert dict(content.template_options) == options


@pytest.mark.parametrize(("asked", "limit"), [({}, None), ({"max_tokens": 0}, 1)])
def test_max_tokens(
    client: httpx.Client, turns: ScriptedTurns, asked: dict[str, int], limit: int | None
) -> None:
    client.post("/v1/messages", json={"messages": HI, **asked})
    assert turns.requests[0].ending.max_tokens == limit


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "ls"}, ToolChoice("required", "ls")),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_tool_choices(
    client: httpx.Client, turns: ScriptedTurns, asked: dict[str, Any], choice: ToolChoice
) -> None:
    client.post("/v1/messages", json={**ASK, "tools": TOOLS, "tool_choice": asked})
    assert turns.requests[0].tool_choice == choice


def test_a_silent_stream_shows_life(client: httpx.Client, turns: ScriptedTurns) -> None:
    """Result: a message that has begun, and deltas without text, until there is some."""
    turns.slow, turns.deltas = 0.25, ("late",)
    text = client.post("/v1/messages", json={**ASK, "stream": True}).text
    names = [line[7:] for line in text.split("\n") if line.startswith("event: ")]
    assert names[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert names.count("content_block_start") == 1
    assert names.count("content_block_delta") >= 3
    assert ": " not in text.split("\n")


def test_the_client_reads_a_stream_with_silences(
    claude: anthropic.Anthropic, turns: ScriptedTurns
) -> None:
    turns.slow, turns.parts = 0.15, (Thought("Hm."), Said("late"))
    with claude.messages.stream(**ASK) as stream:
        assert stream.get_final_text() == "late"


def test_a_loop_of_tools_keeps_its_history(
    claude: anthropic.Anthropic, turns: ScriptedTurns
) -> None:
    """The client tries to leave history to the server first, and sends all of it when refused."""

    @anthropic.beta_tool
    def ls(path: str) -> str:
        """Lists."""
        return f"in {path}"

    turns.parts = PARTS
    asked: Any = {**ASK, "tools": [ls], "max_iterations": 2}
    assert [m.stop_reason for m in claude.beta.messages.tool_runner(**asked)] == ["tool_use"] * 2
    first, second = (request.content for request in turns.requests)
    assert isinstance(first, Chat)
    assert isinstance(second, Chat)
    assert [(m.role, m.content) for m in second.messages] == [
        *((m.role, m.content) for m in first.messages),
        ("assistant", "I look."),
        ("tool", "in /"),
    ]
    assert second.tools == first.tools
    assert len(first.tools) == 1


def test_a_session_of_its_own(client: httpx.Client, turns: ScriptedTurns) -> None:
    answer = client.post("/s/mine/v1/messages?beta=true", json=ASK)
    assert answer.headers["x-session-id"] == "mine"
    header = {"X-Claude-Code-Session-Id": "abc"}
    assert client.post("/s/mine/v1/messages", json=ASK, headers=header).status_code == 200
    assert [r.session.name for r in turns.requests] == ["mine", "mine:abc"]


def test_a_preset_fills_what_is_left_out(turns: ScriptedTurns) -> None:
    preset = Preset(temperature=0.1, max_tokens=7, enable_thinking=False, reasoning_effort="low")
    config = ApiConfig(presets={"fast": preset})
    with served(turns, config) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/messages", json={"model": "fast", "messages": HI})
        more = {"temperature": 0.9, "output_config": {"effort": "high"}}
        client.post("/v1/messages", json={**ASK, "model": "fast", **more})
        client.post("/v1/messages/count_tokens", json={"model": "fast", "messages": HI})
    first, second = turns.requests
    assert (first.sampling.temperature, first.ending.max_tokens) == (0.1, 7)
    assert (second.sampling.temperature, second.ending.max_tokens) == (0.9, 4096)
    options = [
        dict(content.template_options)
        for content in (first.content, second.content, *turns.counted)
        if isinstance(content, Chat)
    ]
    assert options == [
        {"enable_thinking": False, "reasoning_effort": "low"},
        {"enable_thinking": False, "reasoning_effort": "high"},
        {"enable_thinking": False, "reasoning_effort": "low"},
    ]


def test_tokens_are_counted(claude: anthropic.Anthropic, turns: ScriptedTurns) -> None:
    told = claude.messages.count_tokens(
        model="m", messages=HI, system="Be brief.", tools=TOOLS, thinking={"type": "disabled"}
    )
    assert told.input_tokens == 42
    (counted,) = turns.counted
    assert isinstance(counted, Chat)
    assert [m.role for m in counted.messages] == ["system", "user"]
    assert (len(counted.tools), counted.template_options) == (1, (("enable_thinking", False),))
    assert turns.requests == []


def test_somebody_is_there(client: httpx.Client, turns: ScriptedTurns) -> None:
    answer = client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


def test_an_overflow_is_worded_so_that_agents_compact(
    claude: anthropic.Anthropic, turns: ScriptedTurns
) -> None:
    fault = ContextLengthExceeded("Too much.", tokens=9000, limit=8192, param="messages")
    turns.fault = fault
    with pytest.raises(anthropic.BadRequestError) as refusal:
        claude.messages.create(**ASK)
    body: Any = refusal.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"] == "prompt is too long: 9000 tokens > 8192 maximum"
    turns.fault, turns.late_fault = None, fault
    with pytest.raises(anthropic.APIStatusError) as late, claude.messages.stream(**ASK) as stream:
        stream.until_done()
    assert "prompt is too long: 9000 tokens > 8192 maximum" in str(late.value)


@pytest.mark.parametrize(
    ("fault", "kind", "name"),
    [
        (QueueFull("Full."), anthropic.RateLimitError, "rate_limit_error"),
        (Unavailable("Draining."), anthropic.InternalServerError, "overloaded_error"),
    ],
)
def test_a_busy_server_is_told_in_the_clients_words(
    claude: anthropic.Anthropic,
    turns: ScriptedTurns,
    fault: Exception,
    kind: type[anthropic.APIStatusError],
    name: str,
) -> None:
    turns.fault = fault
    with pytest.raises(anthropic.APIStatusError) as refusal:
        claude.messages.create(**ASK, stream=True)
    assert refusal.value.response.headers["retry-after"]
    assert refusal.value.status_code == fault.status  # type: ignore[attr-defined]
    body: Any = refusal.value.body
    assert (body["type"], body["error"]["type"]) == ("error", name)


def test_a_late_error_ends_the_stream(claude: anthropic.Anthropic, turns: ScriptedTurns) -> None:
    turns.late_fault = PoolFull("The pool is full.")
    seen = []
    with pytest.raises(anthropic.APIStatusError) as failed, claude.messages.stream(**ASK) as stream:
        for event in stream:
            seen.append(event.type)
    assert seen[0] == "message_start"
    assert "message_stop" not in seen
    body: Any = failed.value.body
    assert body["error"]["type"] == "overloaded_error"
    assert turns.closed == 1


def test_while_the_model_loads_the_asked_name_is_told(
    claude: anthropic.Anthropic, turns: ScriptedTurns
) -> None:
    turns.health_now = replace(HEALTH, model=None)
    assert claude.messages.create(**ASK).model == "claude-x"
