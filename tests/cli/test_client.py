from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.client import BadAddress, ChatEnd, ChatText, Client, RequestFailed, find_daemon
from sessiond.sessions.turn import Miss
from tests.cli.fake_daemon import Daemon, failure, health, reply, serving, session


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


def spoken(daemon: Daemon) -> list[ChatText | ChatEnd]:
    with Client(daemon.url) as client:
        return list(client.chat("alice/b c", [{"role": "user", "content": "x"}]))


def test_a_stream_is_read_whole_however_it_is_cut(daemon: Daemon) -> None:
    text = ("line\u2028separator ", "next\x85line ", "é漢🙂\r\n")
    miss = {"cause": "evicted", "message": "gone", "tokens": 3}
    whole = b"".join(reply(*text, miss=miss))
    daemon.stream = [bytes([byte]) for byte in whole]
    *pieces, end = spoken(daemon)
    assert [piece.text for piece in pieces if isinstance(piece, ChatText)] == list(text)
    assert isinstance(end, ChatEnd)
    assert (end.turn, end.finish_reason, end.completion_tokens) == (41, "stop", 3)
    assert end.miss == Miss("evicted", "gone", 3)
    assert daemon.requests[0][1] == "/s/b%20c/v1/chat/completions"
    assert daemon.headers[0]["X-Sessiond-Owner"] == "alice"


@pytest.mark.parametrize(
    "stream",
    [
        [b'data: {"error": {"message": "the engine failed"}}\n\n'],
        [b"data: not json\n\n"],
        reply("Hello")[:2],
    ],
    ids=["error event", "no json", "cut short"],
)
def test_a_broken_stream_is_an_error(daemon: Daemon, stream: list[bytes]) -> None:
    daemon.stream = stream
    with pytest.raises(RequestFailed):
        spoken(daemon)


def test_a_refused_chat_says_the_daemons_words(daemon: Daemon) -> None:
    daemon.answers["POST /s/b%20c/v1/chat/completions"] = (400, failure("x", "Not sent: no."))
    with pytest.raises(RequestFailed, match=r"Not sent: no\.") as caught:
        spoken(daemon)
    assert caught.value.answered == 400


def test_health_is_read_also_while_loading(daemon: Daemon) -> None:
    daemon.answers["GET /health"] = (503, health("loading", loading_progress=0.5))
    with Client(daemon.url) as client:
        answer = client.health()
    assert (answer.status, answer.loading_progress) == ("loading", 0.5)


@pytest.mark.parametrize("url", ["localhost:8484", "ftp://x", "http://[::1", "nonsense"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        find_daemon(url)


def test_a_socket_that_a_killed_daemon_left_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "sessiond.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.delenv("SESSIOND_URL", raising=False)
    assert left.exists()
    assert find_daemon().socket is None


def test_the_administrator_names_a_session_of_an_owner_by_its_full_name(daemon: Daemon) -> None:
    """The name goes where names go, the owner into a header; the answers have the full name."""
    told = session("alice/my diary", owner="alice")
    daemon.answers |= {
        "GET /v1/sessions/my%20diary": (200, told),
        "POST /v1/sessions": (201, told),
        "POST /v1/sessions/my%20diary/fork": (201, session("alice/copy", owner="alice")),
        "PATCH /v1/sessions/my%20diary": (200, told),
    }
    with Client(daemon.url) as client:
        assert client.session("alice/my diary").name == "alice/my diary"
        client.create("alice/my diary")
        assert client.fork("alice/my diary", "alice/copy").owner == "alice"
        client.fork("alice/my diary", "copy")
        client.update("alice/my diary", new="alice/other")
    assert [headers.get("X-Sessiond-Owner") for headers in daemon.headers] == ["alice"] * 5
    names = [body["name"] for _, _, body in daemon.requests if body]
    assert names == ["my diary", "copy", "copy", "other"]


def test_a_name_of_ones_own_has_no_owner(daemon: Daemon) -> None:
    daemon.answers |= {"GET /v1/sessions/diary": session("diary"), "GET /health": health("ok")}
    with Client(daemon.url) as client:
        client.session("diary")
        client.health()
    assert not any("X-Sessiond-Owner" in headers for headers in daemon.headers)
