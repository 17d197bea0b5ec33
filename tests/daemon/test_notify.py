"""What systemd is told: real datagrams, of the protocol alone and of a whole daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.daemon import watchdog
from sessiond.notify import supervisor
from sessiond.sessions.health import Counts, Glance
from tests.daemon.fake_daemon import FakeDaemon, Supervisor

PING, READY, STOPPING = "WATCHDOG=1", "READY=1", "STOPPING=1"
MORE_TIME = "EXTEND_TIMEOUT_USEC="
ENDLESS = {"stream": True, "max_tokens": 50_000, "ignore_eos": True}


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Supervisor]:
    peer = Supervisor(tmp_path / "notify")
    yield peer
    peer.close()


def daemon_of(peer: Supervisor, tmp_path: Path, *options: str, interval: float = 0.0) -> FakeDaemon:
    """Not waited for. `interval` of the watchdog in seconds."""
    daemon = FakeDaemon(tmp_path / "state", ["--fake-tell", "0.05", *options], waits=False)
    watched = {"WATCHDOG_USEC": str(int(interval * 1e6))} if interval else {}
    daemon.variables = {**peer.variables, **watched}
    return daemon


# --- the protocol


def test_every_message_of_the_protocol(peer: Supervisor) -> None:
    told = supervisor(peer.variables)
    for tell in (told.ping, told.extend, told.reloading):
        tell()
    told.ready("Serving m.")
    told.status("12 sessions\nREADY=1")
    told.stopping("Stopping.")
    messages = [peer._next(5.0) for _ in range(6)]
    reloading, usec = messages[2].split("\nMONOTONIC_USEC=")
    assert messages[:2] == [PING, "EXTEND_TIMEOUT_USEC=30000000"]
    assert reloading == "RELOADING=1"
    assert 0 < int(usec)
    assert messages[3:] == [
        "READY=1\nSTATUS=Serving m.",
        "STATUS=12 sessions READY=1",
        "STOPPING=1\nSTATUS=Stopping.",
    ]


def test_an_abstract_socket() -> None:
    name = f"sessiond-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(f"\0{name}")
        peer.settimeout(5.0)
        supervisor({"NOTIFY_SOCKET": f"@{name}"}).ping()
        assert peer.recv(100).decode() == PING


@pytest.mark.parametrize("address", ["", "nonsense", "/there/is/none", "/" + "x" * 200])
def test_a_supervisor_that_is_not_there_hurts_nobody(address: str) -> None:
    told = supervisor({"NOTIFY_SOCKET": address})
    told.ready("")
    told.ping()


def test_a_supervisor_that_does_not_listen_hurts_nobody(peer: Supervisor) -> None:
    """More messages than its queue takes."""
    for _ in range(2000):
        supervisor(peer.variables).ping()
        if not _is_writable(peer):
            break
    supervisor(peer.variables).ping()


def _is_writable(peer: Supervisor) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        try:
            other.sendto(b"x", peer.variables["NOTIFY_SOCKET"])
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize(
    ("variables", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_pings_are_wanted_as_the_variables_say(
    variables: dict[str, str], interval: float | None
) -> None:
    assert supervisor({"NOTIFY_SOCKET": "/x", **variables}).watchdog == interval
    assert supervisor(variables).watchdog is None


# --- the daemon


def test_it_is_ready_when_it_can_answer_and_pings_through_a_long_prefill(
    peer: Supervisor, tmp_path: Path
) -> None:
    """
    1. The model loads for as long as the test likes; the port answers.
    2. It is loaded. 3. A prompt of 400 micro-batches is read. 4. SIGTERM.
    Result: more time is asked for; READY, and then a turn can be answered; pings all the while;
    STOPPING, and none of it again.
    """
    loading = tmp_path / "loading"
    loading.touch()
    daemon = daemon_of(peer, tmp_path, "--fake-load", str(loading), "--fake-latency", "20",
                       "--server-drain", "0s", interval=0.6)  # fmt: skip
    with daemon:
        peer.hear(MORE_TIME, times=2)
        daemon.wait_for_log("Listening on")
        assert daemon.http.get("/health").json()["status"] == "loading"
        assert not [message for message in peer.messages if message.startswith(READY)]
        loading.unlink()
        assert "STATUS=Serving fake: 0 sessions, 0 running, 0 waiting" in peer.hear(READY)
        assert daemon.http.get("/health").status_code == 200
        body = {"prompt": "x" * 64 * 400, **ENDLESS}
        with daemon.http.stream("POST", "/s/long/v1/completions", json=body) as stream:
            peer.hear("STATUS=Serving fake: 0 sessions, 1 running")
            peer.hear(PING, times=3)
            assert daemon.http.get("/health").json()["running"] == 1
            assert daemon.metric("sessiond_evaluated_tokens_total") < 64 * 400
            daemon.signal(signal.SIGTERM)
            peer.hear(STOPPING)
            stream.read()
        assert daemon.wait() == 0
    order = [m.partition("\n")[0] for m in peer.messages if m.startswith((READY, STOPPING))]
    assert order == [READY, STOPPING]


def test_an_engine_that_hangs_gets_no_ping_though_the_port_answers(
    peer: Supervisor, tmp_path: Path
) -> None:
    daemon = daemon_of(peer, tmp_path, interval=0.3)
    with daemon:
        peer.hear(READY)
        peer.hear(PING, times=3)
        daemon.signal(signal.SIGUSR1)
        with daemon.http.stream("POST", "/s/a/v1/completions", json={"prompt": "x", **ENDLESS}):
            daemon.wait_for_log("it hangs")
            while peer.hears_within("", 0.05):
                pass  # what was sent before
            assert not peer.hears_within(PING, 1.0)
            assert daemon.http.get("/health").status_code == 200


def test_it_asks_for_time_as_long_as_it_saves(peer: Supervisor, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    daemon = daemon_of(peer, tmp_path, "--fake-hold", str(held))
    with daemon:
        peer.hear(READY)
        daemon.complete("a", "x" * 600, max_tokens=4)
        daemon.signal(signal.SIGTERM)
        peer.hear(STOPPING)
        peer.hear(MORE_TIME, times=3)
        assert daemon.http.get("/health").json()["status"] == "draining"
        held.unlink()
        assert daemon.wait() == 0
    assert "1 sessions saved" in daemon.wait_for_log("Stopped:")


def test_a_model_that_cannot_be_loaded_is_told(peer: Supervisor, tmp_path: Path) -> None:
    daemon = daemon_of(peer, tmp_path, "--fake-broken")
    with daemon:
        assert peer.hear(STOPPING) == "STOPPING=1\nSTATUS=Failed: This model is broken."
        assert daemon.wait() == 1
    assert not [message for message in peer.messages if message.startswith(READY)]


def test_a_supervisor_that_is_lost_hurts_nobody(peer: Supervisor, tmp_path: Path) -> None:
    daemon = daemon_of(peer, tmp_path, interval=0.3)
    with daemon:
        peer.hear(READY)
        peer.hear(PING)
        peer.close()
        (tmp_path / "notify").unlink()
        assert daemon.complete("a", "x", max_tokens=4).report["saved"]
        assert daemon.stop() == 0


# --- how long more time is asked for


def idle() -> Glance:
    return Glance("ok", "fake", Counts(0, 0, 0, 0), silence=0.0, done=0)


async def test_a_stop_after_a_long_idle_time_is_given_time_but_not_for_ever(
    peer: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result: time is asked for from the first moment on; where nothing gets done, no more."""
    monkeypatch.setattr(watchdog, "TELL_S", 0.01)
    monkeypatch.setattr(watchdog, "LOAD_S", 0.0)
    watch = watchdog.Watch(supervisor(peer.variables), idle)
    watch.start()
    watch.ready()
    watch.stopping()
    await asyncio.to_thread(peer.hear, MORE_TIME, 3)
    monkeypatch.setattr(watchdog, "STOP_S", 0.0)
    watch.stopping()
    await asyncio.to_thread(peer.hear, STOPPING)
    await asyncio.to_thread(peer.hear, MORE_TIME)
    assert not await asyncio.to_thread(peer.hears_within, MORE_TIME, 0.2)
    await watch.close()
