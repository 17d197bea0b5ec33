"""Foreign hosts and pages, other content and too much of it are turned away before any route."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from sessiond.api.guards import host_is_ours, origin_is_ours
from tests.api.conftest import LIMIT
from tests.api.scripted import ScriptedTurns
from tests.api.test_errors import body_for, routes, shaped

OWN = "nas.fritz.box"
ALLOWED = ("ai.example", "*.lan.test")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8484",
        "LOCALHOST.",
        "app.localhost",
        "127.0.0.1:8484",
        "192.168.1.20",
        "[::1]:8484",
        "[fe80::1]",
        "nas.fritz.box:1",
        "nas",
        "pi.local",
        "pi.home.arpa:80",
        "ai.example",
        "AI.example:443",
        "x.lan.test",
    ],
)
def test_a_host_of_ours(host: str) -> None:
    assert host_is_ours(host, ALLOWED, OWN)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.com",
        "localhost.evil.com",
        "127.0.0.1.evil.com",
        "evil.com:127",
        "fritz.box",
        "nas.evil.com",
        "local",
        "notlocal",
        "x.ai.example",
        "lan.test",
        "127.0.0.1@evil.com",
        "[evil.com]",
        "[::1]evil.com",
        "[127.0.0.1].evil.com:80",
        "[::1",
        "[::1]:80.evil.com",
        "::1evil",
    ],
)
def test_a_foreign_host(host: str) -> None:
    assert not host_is_ours(host, ALLOWED, OWN)


@pytest.mark.parametrize(
    ("origin", "host", "ours"),
    [
        (None, "localhost:8484", True),
        ("http://localhost:8484", "localhost:8484", True),
        ("https://ai.example", "AI.example", True),
        ("null", "localhost:8484", False),
        ("", "localhost:8484", False),
        ("http://localhost:3000", "localhost:8484", False),
        ("http://evil.com", "localhost:8484", False),
        ("http://localhost:8484.evil.com", "localhost:8484", False),
        ("file://", "localhost:8484", False),
    ],
)
def test_an_origin(origin: str | None, host: str, ours: bool) -> None:
    assert origin_is_ours(origin, host) == ours


@pytest.mark.parametrize(("method", "path"), [*routes(), ("GET", "/health"), ("GET", "/metrics")])
@pytest.mark.parametrize("headers", [{"Host": "evil.com"}, {"Origin": "http://evil.com"}])
def test_every_route_is_behind_the_guard(
    client: httpx.Client, turns: ScriptedTurns, method: str, path: str, headers: dict[str, str]
) -> None:
    response = client.request(method, path, json=body_for(method, path), headers=headers)
    assert response.status_code == 403
    assert shaped(response)["code"] == "forbidden"
    assert (turns.requests, turns.sessions) == ([], {})
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(("method", "path"), [r for r in routes() if body_for(*r) is not None])
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/json-seq", None]
)
def test_a_body_must_be_declared_as_json(
    client: httpx.Client, turns: ScriptedTurns, method: str, path: str, kind: str | None
) -> None:
    content = json.dumps(body_for(method, path)).encode()
    headers = {} if kind is None else {"Content-Type": kind}
    response = client.request(method, path, content=content, headers=headers)
    assert response.status_code == 415
    assert shaped(response)["code"] == "unsupported_media_type"
    assert (turns.requests, turns.sessions) == ([], {})


@pytest.mark.parametrize("path", ["/v1/sessions/n/resume", "/v1/sessions/n/park", "/v1/verify"])
def test_a_mutation_without_a_body_needs_no_type_but_takes_no_other(
    client: httpx.Client, turns: ScriptedTurns, path: str
) -> None:
    client.post("/v1/sessions", json={"name": "n"})
    assert client.post(path).status_code == 200
    assert client.post(path, headers={"Content-Type": "text/plain"}).status_code == 415


def test_the_refusal_comes_before_the_end_of_the_body_and_the_connection_is_closed(
    url: str, turns: ScriptedTurns
) -> None:
    """The client sends just over the limit and never the end. Result: the 413, then a close."""
    parts = urlsplit(url)
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as peer:
        peer.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(LIMIT // 65536 + 1):
            peer.sendall(piece)
        answer = b""
        while data := peer.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer


def test_an_announced_size_is_refused_unread(url: str, turns: ScriptedTurns) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as peer:
        peer.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 999999999\r\n\r\n"
        )
        assert peer.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_body_of_exactly_the_limit_is_read(client: httpx.Client, turns: ScriptedTurns) -> None:
    body = json.dumps({"prompt": "hi"}).encode()
    headers = {"Content-Type": "application/json"}
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413)):
        response = client.post("/v1/completions", content=body.ljust(size), headers=headers)
        assert response.status_code == status


def test_the_limit_holds_on_every_route(client: httpx.Client, turns: ScriptedTurns) -> None:
    limited = [route for route in routes() if not route[1].endswith("/import")]
    for method, path in [*limited, ("POST", "/nothing")]:
        content = b" " * (LIMIT + 1)
        response = client.request(
            method, path, content=content, headers={"Content-Type": "application/json"}
        )
        assert (response.status_code, shaped(response)["code"]) == (413, "body_too_large"), path
    assert (turns.requests, turns.sessions) == ([], {})
