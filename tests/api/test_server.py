"""The server listens where it should, stops when it is told, and does not wait for ever."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from sessiond.api import deadline
from sessiond.api.listening import addresses, listen_tcp, listen_unix
from sessiond.errors import ConfigError
from tests.api.scripted import ScriptedTurns
from tests.api.serving import served

CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
MIB = 1024 * 1024


@contextmanager
def daemon(on_stop: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.api.served_process", on_stop, *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().split()[0]
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_while_the_port_answers_and_exits_well(number: signal.Signals) -> None:
    """1. A stream runs. 2. The signal. 3. Another request comes while draining.

    Result: both are answered in full, the code after run_server runs, exit code 0.
    """
    with daemon("drain") as (process, url), httpx.Client(base_url=url) as client:
        with client.stream("POST", "/v1/chat/completions", json=CHAT) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(number)
            assert line(process) == "stopping"
            assert client.get("/health").status_code == 200
            assert [text for text in lines if text][-1] == "data: [DONE]"
        assert line(process) == "drained"
        assert line(process) == "returned"
        assert process.wait(10) == 0


def test_a_second_signal_ends_a_stop_that_hangs() -> None:
    with daemon("hang") as (process, _):
        process.terminate()
        assert line(process) == "stopping"
        process.terminate()
        assert line(process) == "returned"
        assert process.wait(10) == 128 + signal.SIGTERM


def test_a_stop_that_fails_is_told_by_the_exit_code() -> None:
    with daemon("fail") as (process, _):
        process.terminate()
        assert line(process) == "stopping"
        assert line(process) == "returned"
        assert process.wait(10) == 1


def test_64_mib_in_chunks_take_no_memory_beyond_the_limit() -> None:
    with daemon("drain") as (process, url), httpx.Client(base_url=url, timeout=20) as client:
        client.get("/health")
        measured = psutil.Process(process.pid)
        before = measured.memory_info().rss
        pieces = (b" " * 65536 for _ in range(1024))
        headers = {"Content-Type": "application/json"}
        response = client.post("/v1/completions", content=pieces, headers=headers)
        assert response.status_code == 413
        assert measured.memory_info().rss - before <= (32 + 8) * MIB


def test_the_unix_socket_is_not_for_everyone_and_takes_any_host(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    with daemon("drain", str(path)) as (process, _):
        assert path.stat().st_mode & 0o777 == 0o660
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://sessiond") as client:
            assert client.get("/health").status_code == 200
            assert client.get("/health", headers={"Origin": "http://x"}).status_code == 403
        with pytest.raises(ConfigError) as refusal:
            listen_unix(path)
        assert refusal.value.param == "server.uds"
        process.kill()
        process.wait(10)
    listen_unix(path).close()


def test_a_file_in_the_way_of_the_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("mine")
    with pytest.raises(ConfigError):
        listen_unix(path)
    assert path.read_text() == "mine"


def test_a_taken_port_is_a_configuration_error() -> None:
    (first,) = listen_tcp("127.0.0.1", 0)
    with first, pytest.raises(ConfigError) as refusal:
        listen_tcp("127.0.0.1", first.getsockname()[1])
    assert refusal.value.param == "server.port"


def test_addresses_are_what_a_client_needs(tmp_path: Path) -> None:
    listeners = [*listen_tcp("localhost", 0), listen_unix(tmp_path / "s")]
    names = addresses(listeners)
    ports = {listener.getsockname()[1] for listener in listeners[:-1]}
    for listener in listeners:
        listener.close()
    assert names[-1] == f"unix://{tmp_path / 's'}"
    assert len(ports) == 1
    assert set(names[:-1]) <= {f"http://127.0.0.1:{min(ports)}", f"http://[::1]:{min(ports)}"}


async def test_tokens_do_not_wait_for_nagle() -> None:
    options: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            peer = transport.get_extra_info("socket")
            options.set_result(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    (listener,) = listen_tcp("127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Peer, sock=listener)
    async with server:
        _, writer = await asyncio.open_connection(*listener.getsockname())
        writer.close()
        await writer.wait_closed()
        assert await options == 1


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STALLED = {
    "silent": b"",
    "half a header": HEAD,
    "no body": HEAD + b"Content-Length: 5\r\n\r\n",
    "half a body": HEAD + b"Content-Length: 5\r\n\r\n{",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "half a second request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD,
}


@pytest.mark.parametrize("beginning", STALLED.values(), ids=STALLED)
def test_a_request_that_never_ends_is_hung_up_on(
    url: str, turns: ScriptedTurns, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(deadline, "RECEIPT_SECONDS", 0.1)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as peer:
        peer.sendall(beginning)
        while peer.recv(65536):
            pass
    assert turns.requests == []


def test_bytes_that_come_get_time_and_answers_take_as_long_as_they_take(
    client: httpx.Client, turns: ScriptedTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result: body and answer each take longer than the deadline, and all is well."""
    monkeypatch.setattr(deadline, "RECEIPT_SECONDS", 0.5)
    monkeypatch.setattr(deadline, "SLOWEST_BYTES_PER_SECOND", 20_000)
    turns.slow = 0.3

    def slowly() -> Iterator[bytes]:
        for piece in (b'{"prompt":', *[b" " * 10_000] * 8, b'"hi"}'):
            yield piece
            time.sleep(0.1)

    headers = {"Content-Type": "application/json"}
    response = client.post("/v1/completions", content=slowly(), headers=headers)
    assert response.status_code == 200


def test_a_burst_buys_no_silence(
    url: str, turns: ScriptedTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before counts for as long as the deadline, however much it was."""
    monkeypatch.setattr(deadline, "RECEIPT_SECONDS", 0.2)
    host, port = url.removeprefix("http://").split(":")
    upload = HEAD.replace(b"/v1/completions", b"/v1/sessions/import")
    upload = upload.replace(b"json", b"octet-stream") + b"Content-Length: 1000000000\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=5) as peer:
        peer.sendall(upload + b"x" * 2_000_000)
        with suppress(ConnectionResetError):
            while peer.recv(65536):
                pass
    assert turns.sessions == {}


def test_two_hundred_silent_connections_do_not_make_it_deaf(turns: ScriptedTurns) -> None:
    with served(turns) as url:
        host, port = url.removeprefix("http://").split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(200)]
        assert httpx.get(f"{url}/health").status_code == 200
        for peer in silent:
            peer.close()
