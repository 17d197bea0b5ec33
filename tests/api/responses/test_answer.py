"""Whole responses, as OpenAI's own client reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from sessiond.errors import ContextLengthExceeded, PoolFull, QueueFull
from sessiond.sessions.parts import Called, Said, Thought
from sessiond.sessions.turn import Miss, MissCause, ToolChoice
from tests.api.scripted import REPORT, ScriptedTurns

Json = dict[str, Any]
FUNCTION: Json = {
    "type": "function",
    "name": "ls",
    "description": "Lists.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    "strict": False,
}
TOOL = {"type": "function", "function": {k: v for k, v in FUNCTION.items() if k != "type"}}
ALL = (Thought("hm"), Said("Hello "), Said("wörld"), Called("c1", "ls", '{"path":"/"}'))


def post(client: httpx.Client, **body: object) -> Json:
    answer = client.post("/v1/responses", json={"input": "hi", **body})
    assert answer.status_code == 200, answer.text
    told: Json = answer.json()
    Response.model_validate(told)
    return told


def refused(client: httpx.Client, **body: object) -> tuple[str, str | None]:
    answer = client.post("/v1/responses", json={"input": "hi", **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["code"], error["param"]


def test_a_whole_response(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.parts = ALL
    reply = sdk.responses.create(model="any", input="hi", tools=[FUNCTION])  # type: ignore[list-item]
    assert reply.output_text == "Hello wörld"
    thought, said, call = reply.output
    assert thought.type == "reasoning"
    assert thought.content
    assert (thought.content[0].text, thought.summary) == ("hm", [])
    assert said.type == "message"
    assert (said.role, said.status) == ("assistant", "completed")
    assert call.type == "function_call"
    assert (call.call_id, call.name, call.arguments) == ("c1", "ls", '{"path":"/"}')
    assert [item.id for item in reply.output] == [
        f"{kind}_{reply.id.removeprefix('resp_')}{index}"
        for index, kind in enumerate(("rs", "msg", "fc"))
    ]
    assert (reply.status, reply.model, reply.object) == ("completed", "scripted", "response")
    assert reply.usage
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (11, 4)
    assert reply.usage.total_tokens == 15
    assert reply.usage.input_tokens_details.cached_tokens == 4
    assert reply.usage.input_tokens_details.cache_write_tokens == 7


def test_a_response_repeats_what_was_asked(client: httpx.Client, turns: ScriptedTurns) -> None:
    asked: Json = {
        "instructions": "Be terse.",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "tools": [FUNCTION],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "user": "eve",
    }
    told = post(client, **asked, store=False, truncation="auto")
    text, reasoning = asked.pop("text"), asked.pop("reasoning")
    assert {name: told[name] for name in asked} == asked
    assert told["text"] == text
    assert told["reasoning"] == reasoning
    assert (told["store"], told["truncation"], told["previous_response_id"]) == (
        False,
        "disabled",
        None,
    )
    assert told["sessiond"]["session"] == "eve"
    assert told["timings"]["prompt_n"] == 7


def test_a_request_becomes_a_turn(client: httpx.Client, turns: ScriptedTurns) -> None:
    told = post(
        client,
        instructions="Be terse.",
        tools=[{"type": "web_search"}, FUNCTION],
        tool_choice={"type": "function", "name": "ls"},
        parallel_tool_calls=False,
        max_output_tokens=9,
        temperature=0,
        reasoning={"effort": "high"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "array"}}},
        unknown={"field": 1},
    )
    (turn,) = turns.requests
    assert [(m.role, m.content) for m in turn.content.messages] == [  # type: ignore[union-attr]
        ("system", "Be terse."),
        ("user", "hi"),
    ]
    assert turn.tool_choice == ToolChoice("required", "ls", parallel=False)
    assert (turn.ending.max_tokens, turn.sampling.temperature) == (9, 0)
    assert turn.schema == '{"type":"array"}'
    assert dict(turn.content.template_options) == {"reasoning_effort": "high"}  # type: ignore[union-attr]
    assert turn.response_id == told["id"]
    post(client, store=False)
    assert turns.requests[-1].response_id is None


def test_reasoning_goes_where_the_client_reads_it(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    turns.parts = ALL
    include = ["reasoning.encrypted_content"]
    told = post(client, reasoning={"summary": "auto"}, include=include)["output"][0]
    assert told["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert told["content"] == []
    assert told["encrypted_content"]
    assert "encrypted_content" not in post(client)["output"][0]


def test_a_reply_without_a_word_is_an_empty_message(
    sdk: openai.OpenAI, turns: ScriptedTurns
) -> None:
    turns.deltas = ()
    reply = sdk.responses.create(model="m", input="hi")
    assert [item.type for item in reply.output] == ["message"]
    assert reply.output_text == ""


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_a_reply_that_was_cut_is_incomplete(
    client: httpx.Client, turns: ScriptedTurns, reason: Any
) -> None:
    turns.report = replace(REPORT, finish_reason=reason)
    told = post(client)
    assert (told["status"], told["output"][0]["status"]) == ("incomplete", "incomplete")
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}


class Person(BaseModel):
    name: str
    age: int


def test_structured_output_is_parsed(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.deltas = ('{"name":"Eve"', ',"age":3}')
    reply = sdk.responses.parse(model="m", input="hi", text_format=Person)
    assert reply.output_parsed == Person(name="Eve", age=3)
    assert '"age"' in (turns.requests[0].schema or "")


def test_logprobs_come_with_the_words(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.parts = (Thought("hm"), Said("Hel"), Said("lo"))
    reply = sdk.responses.create(
        model="m", input="hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    message = reply.output[-1]
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    tokens = message.content[0].logprobs
    assert tokens
    assert [token.token for token in tokens] == ["Hel", "lo"]
    assert len(tokens[0].top_logprobs) == 2
    assert turns.requests[0].logprobs == 2


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("clock", {"type": "cache_miss", "reason": "input_changed"}),
        ("history_edited", {"type": "cache_miss", "reason": "input_changed"}),
        ("tools_changed", {"type": "cache_miss", "reason": "tools_changed"}),
        ("history_summarised", {"type": "cache_miss", "reason": "context_compacted"}),
        ("model_changed", {"type": "cache_miss", "reason": "model_changed"}),
        ("evicted", {"type": "unavailable"}),
    ],
)
def test_a_miss_is_told_in_openais_words(
    client: httpx.Client, turns: ScriptedTurns, cause: MissCause, told: Json
) -> None:
    turns.report = replace(REPORT, miss=Miss(cause, "It changed.", 9))
    answer = post(client)
    found = answer["prompt_cache_diagnostics"]
    assert {name: found[name] for name in told} == told
    if told["type"] == "cache_miss":
        assert (found["cache_missed_tokens"], found["comparison_reusable_tokens"]) == (9, 4)
    assert answer["sessiond"]["miss"]["cause"] == cause


def test_a_hit_is_told(client: httpx.Client, turns: ScriptedTurns) -> None:
    assert post(client)["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    turns.report = replace(REPORT, cached_tokens=0, prefilled_tokens=11)
    told = post(client)["prompt_cache_diagnostics"]
    assert told == {"type": "comparison_response_not_found"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"instructions": 1}, "instructions"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "x", "parameters": 1}]}, "tools[0].parameters"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"truncation": "middle"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ],
)
def test_bad_requests_name_the_field(
    client: httpx.Client, turns: ScriptedTurns, body: Json, param: str
) -> None:
    assert refused(client, **body)[1] == param
    assert turns.requests == []


def test_an_unknown_previous_response_is_refused_as_openai_does(
    sdk: openai.OpenAI, turns: ScriptedTurns
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="m", input="hi", previous_response_id="resp_1")
    assert refusal.value.code == "previous_response_not_found"
    assert refusal.value.param == "previous_response_id"
    for call in (sdk.responses.retrieve, sdk.responses.delete, sdk.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as missing:
            call("resp_1")  # type: ignore[operator]
        assert missing.value.code == "response_not_found"


def test_errors_before_the_reply_are_statuses(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.fault = QueueFull("64 requests are waiting.")
    for stream in (True, False):
        with pytest.raises(openai.RateLimitError):
            sdk.responses.create(model="m", input="hi", stream=stream)
    turns.fault = ContextLengthExceeded("Too long.", tokens=9, limit=8)
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(model="m", input="hi")
    assert refusal.value.code == "context_length_exceeded"
    turns.fault = None
    turns.late_fault = PoolFull("The pool is full.")
    with pytest.raises(openai.InternalServerError):
        sdk.responses.create(model="m", input="hi")
