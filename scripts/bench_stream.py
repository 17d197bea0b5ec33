"""What the HTTP layer costs per token: server CPU time of a stream against a bare uvicorn one.

    python -m scripts.bench_stream [--tokens 20000] [--json]

Both stream the same bytes, one send per token, to a client in another process. A bare application
without routing, validation or Turns is the floor that uvicorn itself sets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from sessiond.api.app import create_app
from sessiond.api.listening import listen_tcp
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.sessions.parts import Said
from sessiond.sessions.turn import OpenTurn, Spoken, TurnEvent, TurnRequest
from tests.api.scripted import ScriptedTurns

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer.sendall(sys.stdin.buffer.read())
    tail = b""
    while data := peer.recv(1 << 16):
        tail = (tail + data)[-200:]
    sys.exit(0 if b"[DONE]" in tail else 1)
"""


class EndlessTurns(ScriptedTurns):
    """Gives way to the loop before each token, as a queue between threads would."""

    tokens = 0

    async def open(self, request: TurnRequest) -> OpenTurn:
        return OpenTurn("bench", self._tokens())

    async def _tokens(self) -> AsyncGenerator[TurnEvent, None]:
        for token in range(self.tokens):
            await asyncio.sleep(0)
            yield Spoken(" word", (Said(" word"),), (token,))
        yield replace(self._script("bench", None)[-1])


def bare(chunk: bytes, tokens: int) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(tokens):
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return app


async def cpu_per_token(app: ASGIApp, tokens: int) -> float:
    """Microseconds of this process, all threads, for each token of one stream."""
    stop = asyncio.Event()
    listeners = listen_tcp("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]

    async def nothing() -> None:
        return None

    server = asyncio.create_task(run_server(app, listeners, on_stop=nothing, stop=stop))
    for _ in range(2):
        before = time.process_time()
        await drain(port)
        spent = time.process_time() - before
    stop.set()
    await server
    return spent / tokens * 1e6


async def drain(port: int) -> None:
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, str(port), stdin=asyncio.subprocess.PIPE
    )
    with suppress(BrokenPipeError):
        await client.communicate(REQUEST)
    if client.returncode:
        raise SystemExit("the stream was not complete")


async def measure(tokens: int) -> dict[str, float]:
    turns = EndlessTurns()
    turns.tokens = tokens
    ours = await cpu_per_token(create_app(turns, ApiConfig()), tokens)
    chunk = b"data: " + b"x" * 195 + b"\n\n"
    floor = await cpu_per_token(bare(chunk, tokens), tokens)
    return {"sessiond_us": round(ours, 2), "bare_uvicorn_us": round(floor, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure(options.tokens))
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for name, microseconds in result.items():
        sys.stdout.write(f"{name:18} {microseconds:8.2f} per token\n")


if __name__ == "__main__":
    main()
