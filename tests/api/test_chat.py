"""Chat completions as OpenAI's own client reads them, and byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from sessiond.errors import DecodeFailed, PoolFull, QueueFull
from sessiond.sessions.turn import Miss
from tests.api.scripted import HEALTH, REPORT, ScriptedTurns

HI: list[Any] = [{"role": "user", "content": "hi"}]
REPLY = "Hello wörld"


def chunks(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream that ends as it must, without signs of life."""
    events = [event for event in text.split("\n\n") if event != ": "]
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def stream(client: httpx.Client, **more: object) -> list[dict[str, Any]]:
    body = {"messages": HI, "stream": True, **more}
    response = client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    return chunks(response.text)


def test_a_whole_reply(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    answer = sdk.chat.completions.with_raw_response.create(model="any", messages=HI, user="eve")
    assert answer.headers["x-session-id"] == "eve"
    reply = answer.parse()
    assert reply.choices[0].message.content == REPLY
    assert reply.choices[0].message.role == "assistant"
    assert (reply.choices[0].finish_reason, reply.object) == ("stop", "chat.completion")
    assert reply.model == "scripted"
    assert reply.usage
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (11, 3)
    assert reply.usage.total_tokens == 14
    assert reply.usage.prompt_tokens_details
    assert reply.usage.prompt_tokens_details.cached_tokens == 4


def test_the_report_has_the_contracts_fields(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.report = replace(REPORT, miss=Miss("damaged", "A block was damaged.", 9))
    reply = client.post("/v1/chat/completions", json={"messages": HI}).json()
    assert reply["timings"] == {
        "cache_n": 4,
        "prompt_n": 7,
        "prompt_ms": 3.5,
        "prompt_per_second": 2000.0,
        "predicted_n": 3,
        "predicted_ms": 5.0,
        "predicted_per_second": 600.0,
    }
    assert reply["sessiond"] == {
        "session": "unnamed-1",
        "line": "main",
        "turn": 1,
        "source": "new",
        "cached_tokens": 4,
        "restored_tokens": 3,
        "prefilled_tokens": 7,
        "restore_ms": 1.5,
        "ttft_ms": 2.5,
        "saved": True,
        "miss": {"cause": "damaged", "message": "A block was damaged.", "tokens": 9},
    }


def test_a_rate_without_time_is_zero(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.report = replace(REPORT, prompt_ms=0.0, predicted_ms=0.0)
    timings = client.post("/v1/chat/completions", json={"messages": HI}).json()["timings"]
    assert (timings["prompt_per_second"], timings["predicted_per_second"]) == (0.0, 0.0)


def test_a_streamed_reply(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    options: Any = {"include_usage": True}
    got = list(
        sdk.chat.completions.create(model="m", messages=HI, stream=True, stream_options=options)
    )
    assert [c.choices[0].delta.content for c in got[1:-2]] == list(turns.deltas)
    assert got[0].choices[0].delta.role == "assistant"
    assert got[-2].choices[0].finish_reason == "stop"
    assert got[-1].choices == []
    assert got[-1].usage
    assert got[-1].usage.total_tokens == 14


def test_chunk_shapes(client: httpx.Client, turns: ScriptedTurns) -> None:
    """Role, deltas in order, the finish with the report; the heading is the same throughout."""
    got = stream(client)
    shapes = [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in got]
    assert shapes == [
        ({"role": "assistant", "content": ""}, None),
        *(({"content": text}, None) for text in turns.deltas),
        ({}, "stop"),
    ]
    heading = ("id", "object", "created", "model")
    assert len({tuple(c[key] for key in heading) for c in got}) == 1
    assert got[0]["object"] == "chat.completion.chunk"
    assert all(not {"timings", "sessiond", "usage"} & set(c) for c in got[:-1])
    assert (got[-1]["timings"]["cache_n"], got[-1]["sessiond"]["turn"]) == (4, 1)


def test_with_usage_the_report_comes_in_a_chunk_without_choices(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    got = stream(client, stream_options={"include_usage": True})
    assert all(c["usage"] is None and "sessiond" not in c for c in got[:-1])
    assert got[-2]["choices"][0]["finish_reason"] == "stop"
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == 3
    assert {"timings", "sessiond"} <= set(got[-1])


def test_progress_is_told_on_demand(client: httpx.Client, turns: ScriptedTurns) -> None:
    got = stream(client, return_progress=True)
    assert got[0]["choices"][0]["delta"]["role"] == "assistant"
    assert got[1]["prompt_progress"] == {"total": 11, "cache": 4, "processed": 8, "time_ms": 1.0}
    assert [c for c in stream(client) if "prompt_progress" in c] == []


@pytest.mark.parametrize("deltas", [(), ("",), ("", "a", ""), ("🙂\n\ndata: x\r\n", '"\\\x00')])
def test_any_text_arrives_whole_and_in_order(
    client: httpx.Client, turns: ScriptedTurns, deltas: tuple[str, ...]
) -> None:
    turns.deltas = deltas
    got = stream(client)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in got) == "".join(deltas)
    assert got[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(got) == 2 + sum(bool(text) for text in deltas)


def test_a_long_stream_keeps_its_order(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.deltas = tuple(f"{number} " for number in range(3000))
    got = stream(client)
    assert [c["choices"][0]["delta"]["content"] for c in got[1:-1]] == list(turns.deltas)


@pytest.mark.parametrize(("reason", "told"), [("length", "length"), ("cancelled", "length")])
def test_finish_reasons_are_openais(
    client: httpx.Client, turns: ScriptedTurns, reason: Any, told: str
) -> None:
    turns.report = replace(REPORT, finish_reason=reason)
    assert stream(client)[-1]["choices"][0]["finish_reason"] == told


def test_logprobs(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    reply = sdk.chat.completions.create(model="m", messages=HI, logprobs=True, top_logprobs=3)
    assert reply.choices[0].logprobs
    tokens = reply.choices[0].logprobs.content
    assert tokens
    assert [token.token for token in tokens] == list(turns.deltas)
    assert [token.bytes for token in tokens] == [list(text.encode()) for text in turns.deltas]
    assert [top.logprob for top in tokens[0].top_logprobs] == [-0.5, -1.0, -9999.0]
    assert turns.requests[0].logprobs == 3


def test_streamed_logprobs(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.deltas = ("a", "")
    got = stream(client, logprobs=True)
    told = [c["choices"][0]["logprobs"] for c in got]
    assert [None if t is None else t["content"][0]["token"] for t in told] == [None, "a", "", None]
    assert told[1]["content"][0]["top_logprobs"] == []


def test_a_silent_stream_shows_life_and_headers_come_at_once(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    """Result: headers before the first event; comments while nothing happens; then the reply."""
    turns.slow = 0.35
    turns.deltas = ("late",)
    body = {"messages": HI, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["x-session-id"] == "unnamed-1"
        assert turns.pulled == 0
        lines = [line for line in response.iter_lines() if line]
    first = next(index for index, line in enumerate(lines) if line.startswith("data"))
    assert lines[:first] == [": "] * first
    assert 2 <= first <= 8
    assert lines[-1] == "data: [DONE]"


def test_an_error_before_the_headers_is_a_status(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.fault = QueueFull("64 requests are waiting.")
    for streamed in (False, True):
        with pytest.raises(openai.RateLimitError) as refusal:
            sdk.chat.completions.create(model="m", messages=HI, stream=streamed)
        assert refusal.value.response.headers["retry-after"] == "3"
        assert refusal.value.code == "queue_full"


def test_a_later_error_is_an_event_and_the_end(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.late_fault = PoolFull("The pool is full.", hint="Try again.")
    seen = []
    with pytest.raises(openai.APIError) as failure:
        for chunk in sdk.chat.completions.create(model="m", messages=HI, stream=True):
            seen.append(chunk.choices[0].delta.content)
    assert seen == ["", *turns.deltas]
    assert failure.value.code == "pool_full"
    assert turns.closed == 1


@pytest.mark.parametrize("fault", [ValueError("CANARY"), DecodeFailed("llama_decode gave -3.")])
def test_a_late_error_event_has_openais_shape(
    client: httpx.Client, turns: ScriptedTurns, fault: Exception
) -> None:
    turns.late_fault = fault
    text = client.post("/v1/chat/completions", json={"messages": HI, "stream": True}).text
    event = json.loads(text.rstrip().rpartition("data: ")[2])
    assert set(event) == {"error"}
    assert set(event["error"]) == {"message", "type", "code", "param"}
    assert event["error"]["type"] == "server_error"
    assert "CANARY" not in text
    assert "[DONE]" not in text


def test_a_turn_without_an_end_is_an_error(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.unended = True
    body = {"messages": HI}
    assert client.post("/v1/chat/completions", json=body).status_code == 500
    assert "error" in client.post("/v1/chat/completions", json={**body, "stream": True}).text


def test_the_model_may_still_be_loading_when_the_headers_go_out(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    turns.health_now = replace(HEALTH, model=None)
    turns.slow = 0.2
    body = {"messages": HI, "stream": True, "model": "asked"}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        turns.health_now = HEALTH
        response.read()
    assert {chunk["model"] for chunk in chunks(response.text)} == {"scripted"}
