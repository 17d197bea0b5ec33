"""A small HTTP server over a real socket that answers as the daemon does, with canned JSON."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass
class Daemon:
    """`answers` maps "METHOD /path" to (status, body), or to a list of them whose last one stays.

    A body that is a string is sent as it is.

    `stream` are the lines of the next chat reply; `hang` keeps it open after them.
    """

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    stream: list[bytes] = field(default_factory=list)
    hang: bool = False
    requests: list[tuple[str, str, Json | None]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)

    def asked(self, method_and_path: str) -> list[Json | None]:
        return [
            body for method, path, body in self.requests if f"{method} {path}" == method_and_path
        ]

    def answer(self, key: str) -> tuple[int, Json | str | None]:
        prepared = self.answers.get(key)
        if isinstance(prepared, list):
            prepared = prepared.pop(0) if len(prepared) > 1 else prepared[0]
        if prepared is None:
            return 404, failure("not_found", f"no route {key}")
        return prepared if isinstance(prepared, tuple) else (200, prepared)


class _Handler(BaseHTTPRequestHandler):
    daemon: Daemon
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "test"

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PATCH = do_DELETE = do_GET

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.daemon.requests.append((self.command, self.path, json.loads(body) if body else None))
        self.daemon.headers.append(dict(self.headers))
        if self.path.endswith("/chat/completions") and self.daemon.stream:
            return self._stream()
        status, document = self.daemon.answer(f"{self.command} {self.path}")
        plain = isinstance(document, str)
        content = document.encode() if isinstance(document, str) else b""
        if document is not None and not plain:
            content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if plain else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in self.daemon.stream:
            self._chunk(chunk)
        if self.daemon.hang:
            self._wait_for_hang_up()
        else:
            self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _wait_for_hang_up(self) -> None:
        self.connection.settimeout(20)
        if not self.connection.recv(1):
            self.daemon.hung_up.set()
        self.close_connection = True


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def serving(uds: Path | None = None) -> Iterator[Daemon]:
    daemon = Daemon()
    handler = type("Handler", (_Handler,), {"daemon": daemon})
    server: socketserver.BaseServer
    if uds is None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        daemon.url = f"http://127.0.0.1:{server.server_address[1]}"
    else:
        server = _UnixServer(str(uds), handler)
        daemon.url = f"unix://{uds}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield daemon
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_url() -> str:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def failure(code: str, message: str) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


def session(name: str = "billing", **changes: object) -> Json:
    return {
        "name": name,
        "group": None,
        "agent": "opencode",
        "title": "Sort out the invoices of March",
        "state": "disk",
        "tokens": 41133,
        "turns": 40,
        "lines": 2,
        "created": time.time() - 86400,
        "last_used": time.time() - 200,
        "bytes": 3 << 29,
        "policy": "append-only",
        "hit_rate": 0.97,
        "back_in_ms": 400.0,
        "reason": "",
        "saved": True,
        "pinned_front": [],
        "may_compact": False,
        "pinned": False,
        "owner": "",
    } | changes


def turn(number: int = 40, **changes: object) -> Json:
    return {
        "turn": number,
        "parent": number - 1,
        "line": "main",
        "role_of_new": ["user"],
        "prompt_tokens": 41000,
        "cached_tokens": 40980,
        "prefilled_tokens": 20,
        "completion_tokens": 133,
        "source": "disk",
        "miss": None,
        "finish_reason": "stop",
        "ttft_ms": 85.0,
        "created": time.time() - 200,
    } | changes


def rewrite(**changes: object) -> Json:
    """A clock that moved in the system prompt, as `explain` tells of it."""
    return {
        "turn": None,
        "outcome": "refused",
        "cause": "clock",
        "sentence": "The system prompt changed (clock 10:02 → 10:03).",
        "message": 'Not sent: "billing" only accepts additions, and the system prompt changed.',
        "param": "messages[0].content",
        "first_diff": {
            "message": 0,
            "role": "system",
            "field": "content",
            "char": 412,
            "token": 97,
        },
        "before": "…It is 10:02 in Berlin…",
        "after": "…It is 10:03 in Berlin…",
        "session_tokens": 41133,
        "reusable_tokens": 97,
        "discarded_tokens": 41036,
        "estimated_prefill_ms": 88_123.4,
        "ways": ["Start a new chat.", "sessiond set billing --policy fork   (go on beside it)"],
        "created": time.time() - 200,
        "leaf": 40,
    } | changes


def resumed(**changes: object) -> Json:
    return {
        "session": "billing",
        "source": "disk",
        "tokens": 41133,
        "restored_tokens": 41132,
        "prefilled_tokens": 1,
        "restore_ms": 412.0,
        "predicted_ms": 390.0,
        "miss": None,
    } | changes


def verified(**changes: object) -> Json:
    return {
        "blocks": 120,
        "snapshots": 14,
        "bytes": 3 << 29,
        "damaged": [],
        "missing": [],
        "turns": 40,
        "unsaved_turns": 0,
        "clean": True,
    } | changes


def health(status: str = "ok", **changes: object) -> Json:
    return {
        "status": status,
        "detail": "",
        "model": "smol",
        "memory_kind": "attention",
        "n_ctx": 8192,
        "n_ctx_train": 8192,
        "codec": "blocks",
        "codec_detail": "",
        "staging": "none",
        "running": 0,
        "queued": 0,
        "sessions": 1,
        "unsaved_turns": 0,
        "disk_bytes": 0,
        "disk_quota": 0,
        "loading_progress": None,
    } | changes


def reply(*texts: str, **changes: object) -> list[bytes]:
    """A streamed chat reply, with a comment such as a waiting server sends."""
    block = {
        "session": "billing",
        "line": "main",
        "turn": 41,
        "source": "resident",
        "cached_tokens": 41133,
        "restored_tokens": 0,
        "prefilled_tokens": 21,
        "restore_ms": 0.0,
        "ttft_ms": 85.0,
        "saved": True,
        "miss": None,
    } | changes
    chunks: list[Json] = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "sessiond": block})
    chunks.append({"choices": [], "usage": {"completion_tokens": len(texts)}})
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in chunks]
    return [b": waiting\n\n", *lines, b"data: [DONE]\n\n"]
