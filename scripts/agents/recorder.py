"""Stands between an agent and the daemon and keeps what both said, a line of JSON each time.

A client that leaves is left, so that the daemon sees that too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from scripts.daemon import ANSWER_TIMEOUT_S

_HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
_CHUNK = 65_536


@contextmanager
def recorder(port: int, file: Path) -> Iterator[str]:
    """The address of a proxy for the daemon on `port` that appends to `file`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(port, file)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _handler(port: int, file: Path) -> type[BaseHTTPRequestHandler]:
    turn = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def _pass_on(self) -> None:
            self.close_connection = True
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            daemon = HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
            sent = {n: v for n, v in self.headers.items() if n.lower() not in _HOP_BY_HOP}
            daemon.request(self.command, self.path, body=body or None, headers=sent)
            answer = daemon.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            heard = b""
            with suppress(ConnectionError, HTTPException):
                while chunk := answer.read1(_CHUNK):
                    heard += chunk
                    self.wfile.write(chunk)
                    self.wfile.flush()
            daemon.close()
            self._keep(sent, body, answer.status, heard)

        def _keep(self, headers: dict[str, str], body: bytes, status: int, heard: bytes) -> None:
            line = json.dumps(
                {
                    "method": self.command,
                    "path": self.path,
                    "headers": headers,
                    "body": json.loads(body) if body else None,
                    "status": status,
                    "answer": heard.decode(errors="replace"),
                }
            )
            with turn, file.open("a") as kept:
                kept.write(line + "\n")

        do_DELETE = do_GET = do_HEAD = do_POST = _pass_on

    return Handler
