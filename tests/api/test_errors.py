"""Errors have OpenAI's shape everywhere; ours are logged once, with an id, nothing private."""

from __future__ import annotations

import logging
import re

import httpx
import pytest

from sessiond import errors
from sessiond.api.app import create_app
from sessiond.api.page.routes import PATHS
from sessiond.api.routing import ApiConfig
from tests.api.scripted import ScriptedTurns
from tests.api.serving import served

CHAT: dict[str, object] = {"messages": [{"role": "user", "content": "CANARY"}]}
FAULTS: list[tuple[Exception, int, str]] = [
    (errors.InvalidRequest("Bad.", param="messages"), 400, "invalid_request"),
    (
        errors.ContextLengthExceeded("9 tokens > 8.", tokens=9, limit=8),
        400,
        "context_length_exceeded",
    ),
    (errors.TemplateError("No template."), 400, "chat_template_failed"),
    (errors.SessionNotFound("No such session."), 404, "session_not_found"),
    (errors.Conflict("Busy."), 409, "conflict"),
    (errors.QueueFull("Full."), 429, "queue_full"),
    (errors.LedgerError("Disk."), 500, "ledger_failed"),
    (errors.StateDamaged("Bits.", key="CANARY"), 500, "state_damaged"),
    (errors.DecodeFailed("-3."), 500, "decode_failed"),
    (errors.Unavailable("Draining."), 503, "unavailable"),
    (errors.PoolFull("No cells."), 503, "pool_full"),
    (KeyError("CANARY"), 500, "internal_error"),
]


def routes() -> list[tuple[str, str]]:
    """Every route that asks Turns for something, as (method, path)."""
    paths = create_app(ScriptedTurns(), ApiConfig()).openapi()["paths"]
    found = [
        (method.upper(), path.format(session="s", name="n", response="resp_1", model="m"))
        for path, methods in paths.items()
        for method in methods
        if not path.endswith(("/health", "/metrics"))
        and "/messages" not in path
        and path not in PATHS
    ]
    assert len(found) == 2 * 29
    return found


def body_for(method: str, path: str) -> dict[str, object] | None:
    if path.endswith("chat/completions"):
        return CHAT
    if path.endswith("completions"):
        return {"prompt": "CANARY"}
    if path.endswith("/responses"):
        return {"input": "CANARY"}
    if path.endswith("/tokenize"):
        return {"content": "CANARY"}
    if path.endswith("/detokenize"):
        return {"tokens": [1]}
    if path.endswith("/apply-template"):
        return CHAT
    if path.endswith(("sessions", "/fork")) and method == "POST":
        return {"name": "n"}
    return {"policy": "fork"} if method == "PATCH" else None


def shaped(response: httpx.Response) -> dict[str, str]:
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error: dict[str, str] = response.json()["error"]
    overflow = {"n_prompt_tokens", "n_ctx"} if error["code"] == "context_length_exceeded" else set()
    assert set(error) == {"message", "type", "code", "param"} | overflow
    return error


@pytest.mark.parametrize(("method", "path"), routes())
@pytest.mark.parametrize(("fault", "status", "code"), FAULTS, ids=[code for *_, code in FAULTS])
def test_every_fault_on_every_route(
    client: httpx.Client,
    turns: ScriptedTurns,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    fault: Exception,
    status: int,
    code: str,
) -> None:
    turns.fault = fault
    caplog.set_level(logging.DEBUG)
    response = client.request(method, path, json=body_for(method, path))
    error = shaped(response)
    assert (response.status_code, error["code"]) == (status, code)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    logged = [
        record.getMessage() for record in caplog.records if record.name == "sessiond.api.errors"
    ]
    assert len(logged) == (status >= 500)
    if status >= 500:
        reference = re.search(r"\(id ([0-9a-f]{8})\)$", error["message"])
        assert reference
        assert reference[1] in logged[0]
        assert type(fault).__name__ in logged[0]
    assert "CANARY" not in response.text
    assert "CANARY" not in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/s/a/b/v1/models", 404),
        ("GET", "/s/a%2Fb/v1/models", 404),
        ("GET", "/v1/models/", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("GET", f"/s/{'x' * 900}/v1/models", 400),
        ("GET", f"/v1/sessions/{'x' * 900}", 400),
        ("GET", "/v1/sessions/%00", 400),
    ],
)
def test_paths_and_methods_that_are_not_there(
    client: httpx.Client, turns: ScriptedTurns, method: str, path: str, status: int
) -> None:
    response = client.request(method, path)
    shaped(response)
    assert response.status_code == status
    assert ("allow" in response.headers) == (status == 405)


def test_a_bad_name_in_the_path_is_named(client: httpx.Client, turns: ScriptedTurns) -> None:
    bad = client.post("/s/a%0Ab/v1/chat/completions", json=CHAT)
    assert (bad.status_code, shaped(bad)["param"]) == (400, "session")
    assert shaped(client.get("/v1/sessions/%0A"))["param"] == "name"


def test_the_server_goes_on_after_any_fault(client: httpx.Client, turns: ScriptedTurns) -> None:
    turns.fault = RuntimeError("CANARY")
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 500
    turns.fault = None
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_a_strict_name_refuses_other_models(turns: ScriptedTurns) -> None:
    with served(turns, ApiConfig(strict_name=True)) as url, httpx.Client(base_url=url) as client:
        other = client.post("/v1/chat/completions", json={**CHAT, "model": "gpt-9"})
        own = client.post("/v1/chat/completions", json={**CHAT, "model": "scripted"})
        unsaid = client.post("/v1/chat/completions", json=CHAT)
    assert (other.status_code, own.status_code, unsaid.status_code) == (404, 200, 200)
    assert shaped(other) == {
        "message": "There is no model 'gpt-9'. Use 'scripted'.",
        "type": "invalid_request_error",
        "code": "model_not_found",
        "param": "model",
    }
