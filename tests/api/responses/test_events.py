"""Streams of events: OpenAI's client puts the same response together from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent

from sessiond.api.failure import Failure
from sessiond.api.responses.answer import Heading
from sessiond.api.responses.ids import new_response_id
from sessiond.api.responses.items import Wording
from sessiond.api.responses.reply import ResponseReply
from sessiond.errors import ContextLengthExceeded, DecodeFailed, QueueFull, TemplateError
from sessiond.sessions.parts import Called, Part, Said, Thought, joined
from sessiond.sessions.turn import Finished, OpenTurn, Spoken
from tests.api.responses.test_answer import ALL, FUNCTION
from tests.api.scripted import REPORT, ScriptedTurns

Json = dict[str, Any]
_EVENTS = {
    kind.model_fields["type"].annotation.__args__[0]: kind
    for kind in get_args(get_args(ResponseStreamEvent)[0])
}


def events_of(stream: str) -> list[Json]:
    """Parsed; each is named as its type says, and numbered."""
    found: list[Json] = []
    for block in stream.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        _check(event)
        found.append(event)
    return found


def _check(event: Json) -> None:
    """As OpenAI's types have it, but for the one code that only its servers' agents know."""
    text = json.dumps(event).replace('"context_length_exceeded"', '"invalid_prompt"')
    _EVENTS[event["type"]].model_validate_json(text)


def stream(client: httpx.Client, **more: object) -> list[Json]:
    response = client.post("/v1/responses", json={"input": "hi", "stream": True, **more})
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def types(events: Sequence[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_the_order_of_events(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.parts = ALL
    assert types(stream(client)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_summaries_where_they_are_asked_for(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.parts = (Thought("h"), Thought("m"))
    told = stream(client, reasoning={"summary": "auto"})
    assert types(told)[2:-1] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert told[-1]["response"]["output"][0]["summary"][0]["text"] == "hm"


def test_the_sdk_puts_a_stream_together(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.parts = ALL
    with sdk.responses.stream(model="m", input="hi", tools=[FUNCTION]) as events:  # type: ignore[list-item]
        snapshots = [e.snapshot for e in events if e.type == "response.output_text.delta"]
        reply = events.get_final_response()
    assert snapshots == ["Hello ", "Hello wörld"]
    assert reply.output_text == "Hello wörld"
    assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
    assert reply.usage
    assert reply.usage.output_tokens == 4


def test_streamed_logprobs(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.parts = (Thought("hm"), Said("a"), Said("b"))
    told = stream(client, top_logprobs=1)
    deltas = [e for e in told if e["type"] == "response.output_text.delta"]
    assert [e["logprobs"][0]["token"] for e in deltas] == ["a", "b"]
    done = next(e for e in told if e["type"] == "response.output_text.done")
    assert [token["token"] for token in done["logprobs"]] == ["a", "b"]


def test_progress_is_told_on_demand(client: httpx.Client, turns: ScriptedTurns) -> None:
    told = stream(client, return_progress=True)[2]
    assert told["type"] == "response.in_progress"
    assert told["prompt_progress"] == {"total": 11, "cache": 4, "processed": 8, "time_ms": 1.0}


def test_a_silent_stream_shows_life_as_codex_wants_it(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    turns.slow, turns.deltas = 0.35, ("late",)
    told = types(stream(client))
    assert told[0] == "created"
    assert 3 <= told.count("in_progress") <= 12
    assert "" not in told
    assert told[-1] == "completed"


def test_a_cut_reply_ends_incomplete(sdk: openai.OpenAI, turns: ScriptedTurns) -> None:
    turns.report = replace(REPORT, finish_reason="length")
    *_, last = sdk.responses.create(model="m", input="hi", stream=True)
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[0].status == "incomplete"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (
            ContextLengthExceeded("Too long.", tokens=9, limit=8),
            "context_length_exceeded",
            "Too long.",
        ),
        (QueueFull("Full."), "rate_limit_exceeded", "Full. Please try again in 3s."),
        (TemplateError("No."), "invalid_prompt", "No."),
        (DecodeFailed("llama_decode gave -3."), "server_error", "llama_decode gave -3."),
        (ValueError("CANARY"), "server_error", "Something failed inside sessiond."),
    ],
)
def test_a_late_failure_is_an_event_that_codex_understands(
    client: httpx.Client, turns: ScriptedTurns, fault: Exception, code: str, words: str
) -> None:
    turns.late_fault = fault
    told = stream(client)
    assert told[-1]["type"] == "response.failed"
    failed = told[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", code)
    assert failed["error"]["message"].startswith(words)
    assert "CANARY" not in json.dumps(told)
    assert types(told)[0] == "created"


def reply(*, summarises: bool = False) -> ResponseReply:
    wording = Wording(new_response_id(), summarises)
    echoed = {"parallel_tool_calls": True, "tool_choice": "auto"}
    return ResponseReply(Heading(wording, 1, None, (), echoed), lambda: "m")


words = st.text(min_size=1, max_size=4)
pieces = st.lists(
    st.builds(Said, words) | st.builds(Thought, words) | st.builds(Called, words, words, words),
    max_size=6,
)


@settings(deadline=None)
@given(st.lists(pieces, max_size=5), st.booleans(), st.sampled_from(["stop", "length"]))
def test_a_stream_ends_with_what_a_whole_answer_has(
    groups: list[list[Part]], summarises: bool, reason: Any
) -> None:
    """Parts in any pieces. Result: the same items, and texts are their deltas joined."""
    streamed = reply(summarises=summarises)
    parts = joined(part for group in groups for part in group)
    report = replace(REPORT, finish_reason=reason)
    finished = Finished("", report, parts)
    told = b"".join(streamed.spoken(Spoken("", tuple(group))) for group in groups)
    events = events_of((told + streamed.last(finished)).decode())
    whole = streamed.whole(finished, None)
    got = events[-1]["response"]
    assert got["output"] == json.loads(json.dumps(whole["output"]))
    assert got["status"] == whole["status"]
    for index, item in enumerate(got["output"]):
        deltas = [e["delta"] for e in events if "delta" in e and e["output_index"] == index]
        shown = item.get("content") or item.get("summary") or [{"text": item.get("arguments", "")}]
        assert "".join(deltas) == shown[0]["text"]
    added = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in got["output"]]


def test_a_turn_that_an_earlier_try_began_has_its_id() -> None:
    async def nothing() -> Any:
        yield

    told = reply()
    told.opened(OpenTurn("s", nothing(), "resp_" + "a" * 48))
    first = events_of(told.alive().decode())[0]
    assert first["response"]["id"] == "resp_" + "a" * 48
    item = told.whole(Finished("x", REPORT, (Said("x"),)), None)["output"][0]
    assert item["id"] == f"msg_{'a' * 48}0"


def test_a_failure_before_anything_was_said_has_a_beginning() -> None:
    failure = Failure(500, "Broken.", "engine_failed", None, "abcd")
    told = events_of(reply().failed(failure).decode())
    assert types(told) == ["created", "in_progress", "failed"]
    assert told[-1]["response"]["error"]["message"] == "Broken. (id abcd)"
