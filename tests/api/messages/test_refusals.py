"""Errors have Anthropic's shape on its routes, and bad input names its field."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from sessiond import errors
from sessiond.api.keys import Key, Keys
from sessiond.api.messages.errors import is_anthropics
from sessiond.api.routing import ApiConfig
from sessiond.sessions.explanation import ContextEditRejected, Explanation, FirstDiff
from tests.api.conftest import LIMIT
from tests.api.scripted import ScriptedTurns
from tests.api.serving import served

HI: list[dict[str, Any]] = [{"role": "user", "content": "CANARY"}]
ASK: dict[str, Any] = {"messages": HI}
PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/s/a/v1/messages")
LS = {"name": "ls", "input_schema": {}}


def shaped(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) - {"request_id"} == {"type", "error"}
    assert body["type"] == "error"
    error: dict[str, Any] = body["error"]
    assert {"type", "message", "code", "param"} <= set(error)
    return error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (errors.InvalidRequest("Bad."), 400, "invalid_request_error"),
        (errors.TemplateError("No."), 400, "invalid_request_error"),
        (errors.SessionNotFound("No."), 404, "not_found_error"),
        (errors.Conflict("Busy."), 409, "invalid_request_error"),
        (errors.QueueFull("Full."), 429, "rate_limit_error"),
        (errors.DecodeFailed("-3."), 500, "api_error"),
        (errors.Unavailable("Draining."), 503, "overloaded_error"),
        (KeyError("CANARY"), 500, "api_error"),
    ],
)
def test_every_fault(
    client: httpx.Client,
    turns: ScriptedTurns,
    path: str,
    fault: Exception,
    status: int,
    kind: str,
) -> None:
    turns.fault = fault
    response = client.post(path, json=ASK)
    error = shaped(response)
    assert (response.status_code, error["type"]) == (status, kind)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert ("request_id" in response.json()) == (status >= 500)
    assert "CANARY" not in response.text


def test_a_refused_rewrite_says_all_it_says_elsewhere(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    diff = FirstDiff(0, "system", "content", 412, 97)
    turns.fault = ContextEditRejected(
        "billing",
        Explanation(
            turn=None,
            leaf=40,
            outcome="refused",
            cause="clock",
            sentence="The system prompt changed.",
            message='Not sent: "billing" only accepts additions.',
            param="messages[0].content",
            first_diff=diff,
            before="10:02",
            after="10:03",
            session_tokens=41230,
            reusable_tokens=97,
            discarded_tokens=41133,
            estimated_prefill_ms=88000.0,
            ways=(),
            created=time.time(),
        ),
    )
    response = client.post("/v1/messages", json=ASK)
    error = shaped(response)
    other = client.post("/v1/chat/completions", json=ASK).json()["error"]
    assert (response.status_code, response.headers["x-should-retry"]) == (400, "false")
    assert error == {**other, "type": "invalid_request_error"}
    assert (error["cause"], error["discarded_tokens"]) == ("clock", 41133)


def test_what_never_reaches_a_route(turns: ScriptedTurns) -> None:
    config = ApiConfig(max_body=LIMIT, keys=Keys((Key.of("", b"right"),)))
    with served(turns, config) as url, httpx.Client(base_url=url, timeout=10) as client:
        unknown = client.post("/v1/messages", json=ASK)
        known = client.post("/v1/messages", json=ASK, headers={"x-api-key": "right"})
        page = {"x-api-key": "right", "origin": "http://evil.example"}
        foreign = client.post("/v1/messages", json=ASK, headers=page)
        large = client.post(
            "/v1/messages", content=b"x" * (LIMIT + 1), headers={"x-api-key": "right"}
        )
    told = [(r.status_code, shaped(r)["type"]) for r in (unknown, foreign, large)]
    assert told == [
        (401, "authentication_error"),
        (403, "permission_error"),
        (413, "request_too_large"),
    ]
    assert known.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("POST", "/v1/messages/batches", 404),
        ("POST", "/s/a/v1/messages/", 404),
        ("POST", "/s/a%0Ab/v1/messages", 400),
    ],
)
def test_paths_below_messages(
    client: httpx.Client, turns: ScriptedTurns, method: str, path: str, status: int
) -> None:
    response = client.request(method, path, json=ASK if method == "POST" else None)
    shaped(response)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/v1/messages", True),
        ("/s/x/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages2", False),
        ("/v1/sessions/messages", False),
        ("/s/v1/messages", False),
        ("/v1/chat/completions", False),
    ],
)
def test_paths_of_anthropics_api(path: str, ours: bool) -> None:
    assert is_anthropics(path) is ours


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    ({"tools": {}}, "tools"),
    ({"tools": ["ls"]}, "tools[0]"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"thinking": "on"}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    ({"output_config": {"effort": "a b"}}, "output_config.effort"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
]
BAD_MESSAGES: list[tuple[dict[str, Any], str | None]] = [
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "7"}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"stream": "yes"}, "stream"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [LS], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [LS], "tool_choice": {"type": "tool", "name": "rm"}}, "tool_choice"),
    ({"tools": [{"name": "x"}], "tool_choice": {"type": "any"}}, "tool_choice"),
    (
        {
            "json_schema": {},
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        },
        "output_config.format",
    ),
    ({"thread": {"type": "create"}}, "thread"),
    ({"diagnostics": {"previous_message_id": 5}}, "diagnostics.previous_message_id"),
    ({"session_id": "a/b"}, "session_id"),
]


@pytest.mark.parametrize(("change", "param"), [*BAD, *BAD_MESSAGES], ids=str)
def test_a_bad_request_names_its_field(
    client: httpx.Client, turns: ScriptedTurns, change: dict[str, Any], param: str
) -> None:
    response = client.post("/v1/messages", json={**ASK, **change})
    error = shaped(response)
    assert (response.status_code, error["param"]) == (400, param), error
    assert error["type"] == "invalid_request_error"
    assert turns.requests == []
    assert "CANARY" not in response.text


@pytest.mark.parametrize(("change", "param"), BAD, ids=str)
def test_a_bad_count_names_its_field(
    client: httpx.Client, turns: ScriptedTurns, change: dict[str, Any], param: str
) -> None:
    response = client.post("/v1/messages/count_tokens", json={**ASK, **change})
    assert (response.status_code, shaped(response)["param"]) == (400, param)
    assert turns.counted == []


@pytest.mark.parametrize("body", [b"{bad", b"", b"[1]", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(
    client: httpx.Client, turns: ScriptedTurns, body: bytes
) -> None:
    response = client.post(
        "/v1/messages", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400
    assert shaped(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "change",
    [
        {"system": None, "tools": None, "tool_choice": None, "thinking": None, "stream": None},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"service_tier": "auto", "container": None, "mcp_servers": [], "betas": ["x"]},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "unknown": {"deep": [1]}},
        {"thinking": {"type": "new_kind", "display": "new"}, "metadata": {"user_id": None}},
    ],
    ids=str,
)
def test_unknown_and_empty_fields_are_normal(
    client: httpx.Client, turns: ScriptedTurns, change: dict[str, Any]
) -> None:
    assert client.post("/v1/messages", json={**ASK, **change}).status_code == 200
    assert client.post("/v1/messages/count_tokens", json={**ASK, **change}).status_code == 200
