"""A model swapper that does what llama-swap's documentation and source say of it, and no more.

A request names a model, in its body or as `/upstream/MODEL/…`. The model's command is started if it
does not run, in a process group of its own, and its check endpoint is polled until it answers 200;
the request waits. One model runs at a time: for another one, the requests under way are waited for,
the process group gets SIGTERM, and after `stop_timeout` SIGKILL. Replies are passed on as they
come.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from scripts.daemon import free_port

POLL_S = 0.1
"""llama-swap polls every second."""
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})


class NotStarted(Exception):
    """llama-swap answers 502."""


@dataclass
class Upstream:
    """`command` has `${PORT}` where the port goes. `ended` are the exit codes so far."""

    command: list[str]
    check: str = "/health"
    ended: list[int] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None
    _port: int = 0

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self, log: Path, timeout: float) -> None:
        """Raises NotStarted."""
        self._port = free_port()
        command = [part.replace("${PORT}", str(self._port)) for part in self.command]
        with log.open("ab") as told:
            self._process = subprocess.Popen(
                command, stdout=told, stderr=told, start_new_session=True
            )
        deadline = time.monotonic() + timeout
        while not self._answers():
            if (code := self._process.poll()) is not None:
                self._process = None
                raise NotStarted(f"it exited prematurely with {code}: {log.read_text()[-600:]}")
            if time.monotonic() > deadline:
                self.stop(5.0)
                raise NotStarted("the health check timed out")
            time.sleep(POLL_S)

    def stop(self, timeout: float) -> None:
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.ended.append(self._process.wait())
        self._process = None

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url + self.check, timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False


class Swapper:
    """Use it as a context manager."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        log: Path,
        start_timeout: float = 60.0,
        stop_timeout: float = 60.0,
    ) -> None:
        self.upstreams = dict(upstreams)
        self._log = log
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._under_way = dict.fromkeys(self.upstreams, 0)
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for upstream in self.upstreams.values():
            upstream.stop(self._stop_timeout)

    @contextmanager
    def running(self, model: str) -> Iterator[Upstream]:
        """The model, which is not stopped inside. Raises NotStarted."""
        upstream = self.upstreams[model]
        with self._changed:
            if not upstream.runs:
                self._swap_to(model)
            self._under_way[model] += 1
        try:
            yield upstream
        finally:
            with self._changed:
                self._under_way[model] -= 1
                self._changed.notify_all()

    def _swap_to(self, model: str) -> None:
        others = [name for name in self.upstreams if name != model]
        self._changed.wait_for(lambda: not any(self._under_way[name] for name in others))
        for name in others:
            self.upstreams[name].stop(self._stop_timeout)
        if not self.upstreams[model].runs:
            self.upstreams[model].start(self._log, self._start_timeout)


def _handler(swapper: Swapper) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._pass_on(str(json.loads(body)["model"]) if body else "", body)

        def do_GET(self) -> None:
            self._pass_on("", b"")

        def _pass_on(self, model: str, body: bytes) -> None:
            path = self.path
            if path.startswith("/upstream/"):
                _, _, model, rest = path.split("/", 3)
                path = f"/{rest}"
            try:
                with swapper.running(model) as upstream:
                    self._proxy(upstream.url + path, body)
            except NotStarted as error:
                self.send_error(502, f"unable to start process: {str(error)[:200]}".split("\n")[0])

        def _proxy(self, url: str, body: bytes) -> None:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
            with (
                httpx.Client(timeout=None, trust_env=False) as client,
                client.stream(self.command, url, content=body, headers=headers) as answer,
            ):
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.end_headers()
                for chunk in answer.iter_raw():
                    self.wfile.write(chunk)
                    self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler
