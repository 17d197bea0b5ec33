"""A real `sessiond serve` process with a state directory of its own: start it, talk to it, end it.

What the user has set up (config file, variables) does not reach it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote

import httpx
from prometheus_client.parser import text_string_to_metric_families

Json = dict[str, Any]
Hear = Callable[[str], None]

ANSWER_TIMEOUT_S = 1800.0
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
SAVE_TIMEOUT_S = 60.0
SETTLED_S = 2.5
"""No write for so long: the daemon waits less before it saves, so all is saved."""
_POLL_S = 0.05
_LOG_LINES = 15
_SERVICE_VARIABLES = (
    "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
)


class DaemonFailed(Exception):
    """The daemon did not do what it was told; the end of its log is in the message."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed reply. `ttft_ms` and `total_ms` are the client's milliseconds from before sending.

    `report` is the `sessiond` block, `ttft_ms` in it the daemon's own.
    """

    text: str
    ttft_ms: float
    total_ms: float
    report: Json
    timings: Json
    usage: Json

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def evaluated(self) -> int:
        """Prompt tokens the model evaluated."""
        return int(self.report["prefilled_tokens"])


class Daemon:
    """One daemon on one port of 127.0.0.1. `options` go to `serve`. Use it as a context manager.

    Starting again after `stop` or `kill` continues on the same port and state.
    """

    def __init__(self, model: Path, state: Path, options: Sequence[str] = ()) -> None:
        self.model = model
        self.state = state
        self.log = state.with_name(state.name + ".log")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.variables: dict[str, str] = {}
        """Set for the next start, beside what is inherited."""
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._http: httpx.Client | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def http(self) -> httpx.Client:
        """Talks to the running daemon, past any proxy, and waits half an hour for answers."""
        if self._http is None:
            raise DaemonFailed("The daemon was not started.")
        return self._http

    def start(self) -> float:
        """Waits until it can answer; returns the seconds that took. Raises DaemonFailed."""
        if self._process is not None:
            raise DaemonFailed("The daemon runs already.")
        self.state.mkdir(parents=True, exist_ok=True)
        nothing = self.state.with_name(self.state.name + ".toml")
        nothing.touch()
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(nothing),
                env=_environment(os.environ) | self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._http = httpx.Client(
            base_url=self.url,
            transport=httpx.HTTPTransport(),
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S),
            trust_env=False,
        )
        try:
            self._wait_until_ready(began + START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        return time.monotonic() - began

    def stop(self) -> int:
        """SIGTERM: what runs may end, everything is written. Returns the exit code."""
        process = self._running()
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise DaemonFailed(
                f"It did not stop within {STOP_TIMEOUT_S:.0f} s.\n{self._told()}"
            ) from error
        self._forget()
        return code

    def kill(self) -> None:
        """SIGKILL: nothing is written any more. Nothing happens if it does not run."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._forget()

    def chat(
        self, session: str, messages: Sequence[Json], hear: Hear | None = None, **fields: Any
    ) -> Answer:
        """One streamed turn; `fields` go into the body, `hear` gets the text as it comes."""
        return self._answer(session, "chat/completions", {"messages": messages, **fields}, hear)

    def complete(
        self, session: str, prompt: str, hear: Hear | None = None, **fields: Any
    ) -> Answer:
        """One streamed raw completion."""
        return self._answer(session, "completions", {"prompt": prompt, **fields}, hear)

    def session(self, name: str) -> Json:
        return self._call("GET", f"/v1/sessions/{quote(name, safe='')}")

    def park(self, name: str) -> Json:
        return self._call("POST", f"/v1/sessions/{quote(name, safe='')}/park")

    def metric(self, name: str) -> float:
        """A counter or gauge, summed over its labels."""
        answer = self.http.get("/metrics").raise_for_status()
        samples = (
            sample
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        )
        return sum(sample.value for sample in samples if sample.name == name)

    def wait_until_saved(self, quiet: float = SETTLED_S, *, more_than: float = -1.0) -> None:
        """Returns when no state was written for `quiet` seconds. Raises DaemonFailed.

        `more_than` bytes must have been written since the start: then a shorter `quiet` will do.
        """
        deadline = time.monotonic() + SAVE_TIMEOUT_S
        written, since = -1.0, time.monotonic()
        while written <= more_than or time.monotonic() - since < quiet:
            now = self.metric("sessiond_save_bytes_total")
            if now != written:
                written, since = now, time.monotonic()
            if time.monotonic() > deadline:
                raise DaemonFailed(f"Not saved after {SAVE_TIMEOUT_S:.0f} s.\n{self._told()}")
            time.sleep(2 * _POLL_S)

    # --- inside

    def _command(self, config: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "sessiond", "serve", "--config", str(config)),
            *("--model", str(self.model), "--state-dir", str(self.state), "--uds", "off"),
            *("--host", "127.0.0.1", "--port", str(self.port), *self._options),
        ]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise DaemonFailed("The daemon does not run.")
        return self._process

    def _wait_until_ready(self, deadline: float) -> None:
        while not self._is_ready():
            code = self._running().poll()
            if code is not None:
                raise DaemonFailed(f"The daemon ended with {code}.\n{self._told()}")
            if time.monotonic() > deadline:
                raise DaemonFailed(f"Not ready after {START_TIMEOUT_S:.0f} s.\n{self._told()}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        try:
            answer = self.http.get("/health")
        except httpx.TransportError:
            return False
        if answer.status_code not in (200, 503) or answer.json()["status"] == "failed":
            raise DaemonFailed(f"/health: {answer.status_code} {answer.text}\n{self._told()}")
        return answer.status_code == 200

    def _forget(self) -> None:
        if self._http is not None:
            self._http.close()
        self._process = self._http = None

    def _told(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def _call(self, method: str, path: str) -> Json:
        answer = self.http.request(method, path)
        if answer.is_error:
            raise DaemonFailed(f"{method} {path}: {answer.status_code} {answer.text}")
        document: Json = answer.json()
        return document

    def _answer(self, session: str, route: str, fields: Json, hear: Hear | None) -> Answer:
        path = f"/s/{quote(session, safe='')}/v1/{route}"
        body = {**fields, "stream": True, "stream_options": {"include_usage": True}}
        began = time.perf_counter()
        with self.http.stream("POST", path, json=body) as answer:
            if answer.is_error:
                raise DaemonFailed(f"{path}: {answer.status_code} {answer.read().decode()}")
            return _collected(answer.iter_bytes(), began, hear)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def state_files(state: Path) -> list[Path]:
    """Blocks and snapshots below a state directory, by name."""
    cache = state / "cache"
    found = [*cache.glob("blocks/*/*"), *cache.glob("snapshots/*/*")]
    return sorted(path for path in found if path.is_file())


def ask(peer: IO[str], line: str, answers: IO[str]) -> Json:
    """Sends a line to a process that answers each with one line of JSON."""
    peer.write(line + "\n")
    peer.flush()
    answer: Json = json.loads(answers.readline())
    return answer


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith("SESSIOND_") and name not in _SERVICE_VARIABLES
    }


def _collected(chunks: Iterator[bytes], began: float, hear: Hear | None) -> Answer:
    heard: list[str] = []
    told: Json = {}
    first = 0.0
    for event in events(chunks):
        if "error" in event:
            raise DaemonFailed(f"The stream broke off: {event['error']}")
        first = first or time.perf_counter()
        for choice in event.get("choices", ()):
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            heard.append(text)
            if hear and text:
                hear(text)
        told |= {name: event[name] for name in ("sessiond", "timings", "usage") if event.get(name)}
    if len(told) < 3:
        raise DaemonFailed("The stream ended without a report.")
    return Answer(
        text="".join(heard),
        ttft_ms=(first - began) * 1e3,
        total_ms=(time.perf_counter() - began) * 1e3,
        report=told["sessiond"],
        timings=told["timings"],
        usage=told["usage"],
    )


def events(chunks: Iterable[bytes]) -> Iterator[Json]:
    """The data of each server-sent event, up to `[DONE]`."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if data != line:
                yield json.loads(data)
