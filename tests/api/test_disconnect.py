"""A client that leaves, at any moment, ends the work that was done for it."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.api.scripted import ScriptedTurns
from tests.api.serving import until


def call(url: str, body: dict[str, object]) -> socket.socket:
    parts = urlsplit(url)
    peer = socket.create_connection((parts.hostname or "", parts.port or 0))
    data = json.dumps(body).encode()
    peer.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    return peer


def body(*, stream: bool) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi"}], "stream": stream}


@pytest.mark.parametrize("stream", [False, True])
def test_while_the_turn_waits_to_be_opened(url: str, turns: ScriptedTurns, stream: bool) -> None:
    turns.open_slow = 60
    with call(url, body(stream=stream)):
        until(lambda: turns.requests)
    until(lambda: turns.open_cancelled == 1)
    assert turns.started == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("events", [0, 1, 2, 4])
def test_after_so_many_events(url: str, turns: ScriptedTurns, stream: bool, events: int) -> None:
    """0: before the first; 1: in the prefill; then between tokens. Result: closed, no more."""
    turns.hold_after = events
    turns.deltas = ("a", "b", "c", "d", "e", "f")
    with call(url, body(stream=stream)):
        until(lambda: turns.started and turns.pulled == events)
    until(lambda: turns.closed == 1)
    assert turns.pulled == events
    assert turns.finished == 0


def test_with_a_full_send_buffer(url: str, turns: ScriptedTurns) -> None:
    """The client stops reading until the server cannot write, and then leaves."""
    turns.deltas = ("x" * 100_000,) * 400
    with call(url, body(stream=True)) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        until(lambda: turns.pulled > 3)
    until(lambda: turns.closed == 1)
    assert turns.finished == 0


def test_one_that_leaves_does_not_disturb_another(url: str, turns: ScriptedTurns) -> None:
    turns.slow = 0.05
    with call(url, body(stream=True)) as staying:
        with call(url, body(stream=True)):
            until(lambda: turns.started == 2)
        until(lambda: turns.closed == 1)
        until(lambda: turns.finished == 1)
        data = b""
        while b"[DONE]" not in data:
            data += staying.recv(65536)
    assert turns.closed == 1
