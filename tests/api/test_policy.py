"""The append-only policy from outside: refusals, headers, fork, compact, explain, and settings."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from sessiond.client import Client
from sessiond.sessions.explanation import ContextEditRejected, Explanation, FirstDiff
from sessiond.sessions.turn import Miss, TurnSummary
from tests.api.scripted import ScriptedTurns

Json = dict[str, Any]
CHAT = "/s/billing/v1/chat/completions"
HI: Json = {"messages": [{"role": "user", "content": "hi"}]}
MESSAGE = (
    'Not sent: "billing" only accepts additions, and the system prompt changed '
    "(clock 10:02 → 10:03). Start a new chat, or: sessiond set billing --policy fork"
)
CLOCK = Explanation(
    turn=None,
    leaf=40,
    outcome="refused",
    cause="clock",
    sentence="The system prompt changed (clock 10:02 → 10:03).",
    message=MESSAGE,
    param="messages[0].content",
    first_diff=FirstDiff(message=0, role="system", field="content", char=412, token=97),
    before="BEFORE-CANARY 10:02",
    after="AFTER-CANARY 10:03",
    session_tokens=41230,
    reusable_tokens=97,
    discarded_tokens=41133,
    estimated_prefill_ms=88_000.4,
    ways=("Start a new chat.",),
    created=1.0,
)
BODY: dict[str, Json] = {
    "error": {
        "message": MESSAGE,
        "type": "invalid_request_error",
        "code": "context_edit_rejected",
        "param": "messages[0].content",
        "cause": "clock",
        "session": "billing",
        "explain_url": "/v1/sessions/billing/explain",
        "first_diff": {
            "message": 0,
            "role": "system",
            "field": "content",
            "char": 412,
            "token": 97,
        },
        "reusable_tokens": 97,
        "discarded_tokens": 41133,
        "estimated_prefill_ms": 88000,
    }
}
"""The example of the contract, word for word."""


def in_order(body: object) -> str:
    return json.dumps(body, ensure_ascii=False)


# --- the refusal


def test_a_refusal_has_the_contracts_body(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.fault = ContextEditRejected("billing", CLOCK)
    refused = client.post(CHAT, json=HI)
    assert refused.status_code == 400
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    assert refused.headers["content-type"] == "application/json"
    assert in_order(refused.json()) == in_order(BODY)


def test_a_streamed_request_is_refused_before_its_headers(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    turns.fault = ContextEditRejected("billing", CLOCK)
    refused = client.post(CHAT, json={**HI, "stream": True})
    assert refused.status_code == 400
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["content-type"] == "application/json"
    assert refused.json() == BODY
    assert turns.started == 0


def test_one_that_is_found_late_is_an_error_event(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    """While the model loads, the headers of a stream are out before anything can be compared."""
    turns.deltas, turns.late_fault = (), ContextEditRejected("billing", CLOCK)
    late = client.post(CHAT, json={**HI, "stream": True})
    assert late.status_code == 200
    told = [line.removeprefix("data: ") for line in late.text.split("\n") if "error" in line]
    assert [json.loads(line) for line in told] == [BODY]
    assert "[DONE]" not in late.text


def test_the_openai_client_sends_it_once(turns: ScriptedTurns, url: str) -> None:
    turns.fault = ContextEditRejected("billing", CLOCK)
    with openai.OpenAI(base_url=f"{url}/s/billing/v1", api_key="none", max_retries=3) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
    assert MESSAGE in str(caught.value)
    assert len(turns.requests) == 1


def test_the_excerpts_are_only_in_explain(
    client: httpx.Client, turns: ScriptedTurns, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    turns.fault = ContextEditRejected("billing", CLOCK)
    refused = client.post(CHAT, json=HI)
    assert "CANARY" not in refused.text
    assert "CANARY" not in caplog.text
    assert "10:02" not in caplog.text


def test_any_session_name_is_a_path_that_leads_back(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    name = "büro: 50% & more?#"
    client.post("/v1/sessions", json={"name": name})
    turns.fault = ContextEditRejected(name, CLOCK)
    told = client.post(CHAT, json=HI).json()["error"]
    assert told["session"] == name
    turns.fault = None
    assert client.get(told["explain_url"]).json() == {"rewrites": [], "misses": []}


# --- per request


@pytest.mark.parametrize(
    ("headers", "policy", "compact"),
    [
        ({}, None, False),
        ({"X-Session-Policy": "fork"}, "fork", False),
        ({"x-session-policy": "Append-Only"}, "append-only", False),
        ({"X-Session-Compact": "allow"}, None, True),
        ({"X-Session-Policy": "append-only", "X-Session-Compact": "Allow"}, "append-only", True),
    ],
)
def test_headers_speak_for_one_request(
    client: httpx.Client,
    turns: ScriptedTurns,
    headers: dict[str, str],
    policy: str | None,
    compact: bool,
) -> None:
    assert client.post(CHAT, json=HI, headers=headers).status_code == 200
    (request,) = turns.requests
    assert (request.policy, request.compact) == (policy, compact)


@pytest.mark.parametrize("value", ["", "strict", "default", "fork, append-only", "true", "1"])
@pytest.mark.parametrize("header", ["X-Session-Policy", "X-Session-Compact"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_header_is_named(
    client: httpx.Client, turns: ScriptedTurns, header: str, value: str, stream: bool
) -> None:
    refused = client.post(CHAT, json={**HI, "stream": stream}, headers={header: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "invalid_request")
    assert error["param"] == header
    assert error["message"].startswith(header)
    assert turns.requests == []


# --- sessions


def test_a_fork_is_a_session_of_its_own(client: httpx.Client, turns: ScriptedTurns) -> None:
    client.post("/v1/sessions", json={"name": "n", "policy": "fork"})
    made = client.post("/v1/sessions/n/fork", json={"name": " neu ", "at": 1, "colour": "red"})
    assert (made.status_code, made.json()["name"], made.json()["policy"]) == (201, "neu", "fork")
    assert client.get("/v1/sessions/neu").json() == made.json()
    assert client.post("/v1/sessions/n/fork", json={"name": "end"}).status_code == 201
    assert set(turns.sessions) == {"n", "neu", "end"}


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("nobody", {"name": "new"}, 404, "session_not_found", "name"),
        ("n", {"name": "new", "at": 2}, 404, "not_found", "at"),
        ("n", {"name": "n"}, 409, "conflict", "name"),
        ("n", {}, 400, "invalid_request", "name"),
        ("n", {"name": "a/b"}, 400, "invalid_request", "name"),
        ("n", {"name": "new", "at": 0}, 400, "invalid_request", "at"),
        ("n", {"name": "new", "at": 1 << 31}, 400, "invalid_request", "at"),
        ("n", {"name": "new", "at": "last"}, 400, "invalid_request", "at"),
    ],
)
def test_a_fork_that_cannot_be_makes_nothing(
    client: httpx.Client,
    turns: ScriptedTurns,
    path: str,
    body: Json,
    status: int,
    code: str,
    param: str,
) -> None:
    client.post("/v1/sessions", json={"name": "n"})
    refused = client.post(f"/v1/sessions/{path}/fork", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (status, code, param)
    assert set(turns.sessions) == {"n"}


def test_compact_permits_the_next_rewrite(client: httpx.Client, turns: ScriptedTurns) -> None:
    made = client.post("/v1/sessions", json={"name": "n"}).json()
    assert made["may_compact"] is False
    allowed = client.post("/v1/sessions/n/compact")
    assert (allowed.status_code, allowed.json()) == (200, {**made, "may_compact": True})


def test_explain_has_the_rewrites_and_the_turns_that_missed(
    client: httpx.Client, turns: ScriptedTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/v1/sessions", json={"name": "n"})
    turns.explanations = (CLOCK, replace(CLOCK, turn=7, outcome="forked"))
    missed = [replace(turn_summary(n), miss=Miss("evicted", "Gone.", n)) for n in range(1, 21)]

    async def many(name: str) -> list[TurnSummary]:
        return [*missed, turn_summary(21)]

    monkeypatch.setattr(turns, "turns", many)
    told = client.get("/v1/sessions/n/explain").json()
    first, second = told["rewrites"]
    assert set(first) == {
        "turn",
        "outcome",
        "cause",
        "sentence",
        "message",
        "param",
        "first_diff",
        "before",
        "after",
        "session_tokens",
        "reusable_tokens",
        "discarded_tokens",
        "estimated_prefill_ms",
        "ways",
        "created",
        "leaf",
    }
    assert (first["before"], first["after"]) == (CLOCK.before, CLOCK.after)
    assert first["first_diff"] == BODY["error"]["first_diff"]
    assert (second["turn"], second["outcome"]) == (7, "forked")
    assert [turn["turn"] for turn in told["misses"]] == list(range(5, 21))
    assert told["misses"][-1]["miss"] == {"cause": "evicted", "message": "Gone.", "tokens": 20}


def test_our_own_client_reads_what_the_daemon_tells(
    client: httpx.Client, turns: ScriptedTurns, url: str
) -> None:
    turns.explanations = (CLOCK, replace(CLOCK, turn=7, outcome="forked", ways=()))
    with Client(url) as own:
        made = own.create("a:b", pinned_front=["clock"])
        assert made.pinned_front == ("clock",)
        assert own.update("a:b", policy="fork").policy == "fork"
        assert own.update("a:b", pinned_front=[]) == replace(made, policy="fork", pinned_front=())
        assert own.fork("a:b", "new", at=1).name == "new"
        assert own.compact("new").may_compact
        assert own.explain("new") == list(turns.explanations)


def test_settings_are_changed_one_by_one(client: httpx.Client, turns: ScriptedTurns) -> None:
    made = client.post("/v1/sessions", json={"name": "n", "pinned_front": ["clock"]}).json()
    assert (made["policy"], made["pinned_front"]) == ("append-only", ["clock"])
    changes: list[Json] = [
        {"policy": "fork"},
        {"pinned_front": ["date", "^a.*$"]},
        {"pinned_front": []},
    ]
    for change in changes:
        changed = client.patch("/v1/sessions/n", json={**change, "unheard": {"of": 1}})
        made |= change
        assert (changed.status_code, changed.json()) == (200, made)


def turn_summary(number: int) -> TurnSummary:
    return TurnSummary(
        number, None, "main", ("user",), 11, 4, 7, 3, "new", None, "stop", 2.5, float(number)
    )
