"""Typed client of the HTTP API, for one thread at a time."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote

import httpx

from sessiond.directories import runtime_socket
from sessiond.errors import SessiondError, SessionNotFound
from sessiond.sessions.turn import (
    Health,
    Miss,
    ResumeReport,
    SessionSummary,
    TranscriptMessage,
    TurnSummary,
    VerifyReport,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DEFAULT_URL = "http://127.0.0.1:8484"
ANSWER_TIMEOUT = 30.0
_CONNECT_TIMEOUT = 5.0
_SOCKET_SCHEME = "unix://"

Json = dict[str, Any]
Answer = TypeVar("Answer", bound="DataclassInstance")


class Unreachable(SessiondError):
    """No daemon answers there, or it went away in the middle of an answer."""

    code, status = "daemon_unreachable", 503


class RequestFailed(SessiondError):
    """The daemon refused or failed. `answered` is the HTTP status, 200 for an error in a stream."""

    code: ClassVar[str] = "request_failed"

    def __init__(self, message: str, *, answered: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.answered = answered


class BadAddress(SessiondError):
    """What was given as the daemon's address is none."""

    code, status = "bad_address", 400


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the daemon is: a URL, or a unix socket (then `url` is only for the Host header)."""

    url: str
    socket: Path | None = None

    def __str__(self) -> str:
        return str(self.socket) if self.socket else self.url

    @property
    def is_local(self) -> bool:
        return self.socket is not None or httpx.URL(self.url).host in (
            "127.0.0.1",
            "::1",
            "localhost",
        )


@dataclass(frozen=True, slots=True)
class ChatText:
    """A piece of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The end of a reply, in tokens and milliseconds. `ttft_ms` is the time to the first token."""

    session: str
    line: str
    turn: int
    source: str
    cached_tokens: int
    restored_tokens: int
    prefilled_tokens: int
    restore_ms: float
    ttft_ms: float
    saved: bool
    finish_reason: str
    completion_tokens: int
    miss: Miss | None = None


def find_daemon(url: str | None = None) -> Endpoint:
    """`url`, else $SESSIOND_URL, else the runtime socket if it accepts, else the default."""
    given = url or os.environ.get("SESSIOND_URL")
    if given and given.startswith(_SOCKET_SCHEME):
        return Endpoint("http://localhost", Path(given.removeprefix(_SOCKET_SCHEME)))
    if given:
        return Endpoint(_checked(given).rstrip("/").removesuffix("/v1"))
    path = runtime_socket()
    if path is not None and _accepts(path):
        return Endpoint("http://localhost", path)
    return Endpoint(DEFAULT_URL)


class Client:
    """Close it after use, or use it as a context manager. Raises Unreachable, RequestFailed and
    SessionNotFound (where a session is named)."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self.endpoint = find_daemon(url)
        key = key or os.environ.get("SESSIOND_API_KEY")
        uds = str(self.endpoint.socket) if self.endpoint.socket else None
        self._http = httpx.Client(
            base_url=self.endpoint.url,
            transport=self._direct(uds) if self.endpoint.is_local else None,
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=httpx.Timeout(ANSWER_TIMEOUT, connect=_CONNECT_TIMEOUT),
        )

    def _direct(self, uds: str | None) -> httpx.HTTPTransport:
        """Past any proxy of the environment, and without loading certificates for plain HTTP."""
        return httpx.HTTPTransport(uds=uds, verify=self.endpoint.url.startswith("https://"))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def sessions(self) -> list[SessionSummary]:
        answer = self._call("GET", "/v1/sessions")
        return [_read(SessionSummary, entry) for entry in answer["sessions"]]

    def session(self, name: str) -> SessionSummary:
        return _read(SessionSummary, self._call("GET", _path(name), session=name))

    def create(self, name: str, policy: str | None = None) -> SessionSummary:
        wanted = {"name": name} | ({"policy": policy} if policy else {})
        return _read(SessionSummary, self._call("POST", "/v1/sessions", body=wanted))

    def resume(self, name: str) -> ResumeReport:
        """Waits as long as it takes."""
        answer = self._call("POST", f"{_path(name)}/resume", session=name, timeout=None)
        return _read(ResumeReport, answer)

    def park(self, name: str) -> SessionSummary:
        """Waits as long as it takes."""
        answer = self._call("POST", f"{_path(name)}/park", session=name, timeout=None)
        return _read(SessionSummary, answer)

    def delete(self, name: str) -> None:
        self._call("DELETE", _path(name), session=name)

    def turns(self, name: str) -> list[TurnSummary]:
        """Of all lines, in order of number."""
        answer = self._call("GET", f"{_path(name)}/turns", session=name)
        return [_read(TurnSummary, entry) for entry in answer["turns"]]

    def transcript(self, name: str) -> list[TranscriptMessage]:
        """Of the main line, in order."""
        answer = self._call("GET", f"{_path(name)}/transcript", session=name)
        return [_read(TranscriptMessage, entry) for entry in answer["messages"]]

    def verify(self) -> VerifyReport:
        """Reads every stored block and snapshot; waits as long as it takes."""
        return _read(VerifyReport, self._call("POST", "/v1/verify", timeout=None))

    def health(self) -> Health:
        """Also while the model loads (the daemon answers 503 then)."""
        return _read(Health, self._call("GET", "/health", accept=503))

    def chat(
        self, name: str, messages: list[dict[str, str]]
    ) -> Generator[ChatText | ChatEnd, None, None]:
        """Continue `name`: pieces of the reply, then its end. Closing it cancels the turn."""
        body = {
            "model": "sessiond",
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        path = f"/s/{_segment(name)}/v1/chat/completions"
        with self._reaching(), self._http.stream("POST", path, json=body, timeout=None) as answer:
            if answer.is_error:
                answer.read()
                raise _failure(answer, None)
            yield from _reply(_events(answer.iter_bytes()))

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        session: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        accept: int | None = None,
    ) -> Json:
        patience = httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT)
        with self._reaching():
            answer = self._http.request(method, path, json=body, timeout=patience)
        if answer.is_error and answer.status_code != accept:
            raise _failure(answer, session)
        return _document(answer) if answer.content else {}

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise _unreachable(self.endpoint, error) from error


def _checked(url: str) -> str:
    try:
        if httpx.URL(url).scheme in ("http", "https"):
            return url
        problem = "does not start with http://, https:// or unix://"
    except httpx.InvalidURL as error:
        problem = f"is not valid: {error}"
    raise BadAddress(
        f'The address "{url}" {problem}.',
        hint=f"Give it like {DEFAULT_URL}, with --url or SESSIOND_URL.",
        param="--url",
    )


def _accepts(path: Path) -> bool:
    """A socket file outlives a killed daemon, so it must be tried."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(_CONNECT_TIMEOUT)
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _segment(name: str) -> str:
    """One path segment. A name of dots alone would be taken for a step up."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def _path(name: str) -> str:
    return f"/v1/sessions/{_segment(name)}"


def _document(answer: httpx.Response) -> Json:
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise _stranger(answer)
    return document


def _stranger(answer: httpx.Response) -> RequestFailed:
    return RequestFailed(
        f"{answer.url} answered {answer.status_code}, but not as sessiond does.",
        answered=answer.status_code,
        hint="Is that address another program's? Give the right one with --url.",
    )


def _read(kind: type[Answer], document: object) -> Answer:
    """A dataclass from JSON. Fields a newer daemon adds are left out."""
    if not isinstance(document, dict):
        raise RequestFailed(f"The daemon's answer is no {kind.__name__}.", answered=200)
    names = [field.name for field in fields(kind) if field.name in document]
    known = {name: _field(name, document[name]) for name in names}
    try:
        return kind(**known)
    except TypeError as error:
        raise RequestFailed(
            f"The daemon's answer is not a complete {kind.__name__}: {error}.",
            answered=200,
            hint="Are the daemon and this command of the same version?",
        ) from error


def _field(name: str, value: object) -> object:
    if name == "miss" and isinstance(value, dict):
        return _read(Miss, value)
    return tuple(value) if isinstance(value, list) else value


def _failure(answer: httpx.Response, session: str | None) -> SessiondError:
    error = _document(answer).get("error")
    if not isinstance(error, dict) or "message" not in error:
        return _stranger(answer)
    if error.get("code") == SessionNotFound.code and session is not None:
        return SessionNotFound(
            f'There is no session named "{session}".', hint="See what there is: sessiond list"
        )
    hint = "Set the key in SESSIOND_API_KEY." if answer.status_code == 401 else ""
    return RequestFailed(str(error["message"]), answered=answer.status_code, hint=hint)


def _unreachable(endpoint: Endpoint, error: httpx.TransportError) -> Unreachable:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        reason = "nothing listens there" if "refused" in str(error) else str(error) or "no answer"
        return Unreachable(
            f"Cannot reach sessiond at {endpoint}: {reason}.",
            hint="Start it with: sessiond serve, or give its address with --url.",
        )
    if isinstance(error, httpx.TimeoutException):
        reason = f"no answer within {ANSWER_TIMEOUT:.0f} seconds"
    else:
        reason = "the connection broke off"
    return Unreachable(f"sessiond at {endpoint} went silent: {reason}.", hint="See its log.")


def _events(chunks: Iterator[bytes]) -> Iterator[Json]:
    """The data of each server-sent event, up to `[DONE]`.

    Lines end at newline bytes only: httpx's own line iterator also splits at U+2028 inside text.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:") and data:
                yield _event(data)


def _event(data: bytes) -> Json:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise RequestFailed("The daemon's stream holds an event that is no JSON.", answered=200)
    return event


def _reply(events: Iterator[Json]) -> Iterator[ChatText | ChatEnd]:
    reason, tokens, report = "", 0, None
    for event in events:
        if error := event.get("error"):
            message = error.get("message", error) if isinstance(error, dict) else error
            raise RequestFailed(str(message), answered=200)
        for choice in event.get("choices", ()):
            if text := choice.get("delta", {}).get("content"):
                yield ChatText(text)
            reason = choice.get("finish_reason") or reason
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        report = event.get("sessiond") or report
    if report is None:
        raise RequestFailed("The reply ended before it was complete.", answered=200)
    yield _read(ChatEnd, {**report, "finish_reason": reason, "completion_tokens": tokens})
