"""The client itself: one method for each thing the daemon can be asked."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

from sessiond.client.acting import act_for_owner, acting, beside
from sessiond.client.answers import Json, document, failure, read, samples
from sessiond.client.endpoint import CONNECT_TIMEOUT, Endpoint, find_daemon
from sessiond.client.http import httpx
from sessiond.client.stream import ChatEnd, ChatText, events, reply
from sessiond.directories import SERVICE_UNIT
from sessiond.errors import SessiondError
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.naming import called, owner_of
from sessiond.sessions.transfer.report import ImportReport
from sessiond.sessions.turn import (
    Health,
    ResumeReport,
    SessionSummary,
    TranscriptMessage,
    TurnSummary,
    VerifyReport,
)

ANSWER_TIMEOUT = 30.0
PART = 1 << 20
_PATIENT = httpx.Timeout(None, connect=CONNECT_TIMEOUT)


class Unreachable(SessiondError):
    """No daemon answers there, or it went away in the middle of an answer."""

    code, status = "daemon_unreachable", 503


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
            event_hooks={"request": [act_for_owner]},
            timeout=httpx.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT),
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
        return [read(SessionSummary, entry) for entry in answer["sessions"]]

    def session(self, name: str) -> SessionSummary:
        return read(SessionSummary, self._call("GET", _path(name), session=name))

    def create(
        self,
        name: str,
        policy: str | None = None,
        pinned_front: Sequence[str] | None = None,
    ) -> SessionSummary:
        """None is left to the configuration."""
        wanted = {"name": called(name)} | _given(policy, pinned_front)
        answer = self._call("POST", "/v1/sessions", body=wanted, owner=owner_of(name))
        return read(SessionSummary, answer)

    def update(
        self,
        name: str,
        policy: str | None = None,
        pinned_front: Sequence[str] | None = None,
        *,
        new: str | None = None,
        pinned: bool | None = None,
    ) -> SessionSummary:
        """None stays as it is; "default" and ["default"] are those of the configuration. `new` is
        its name from now on.
        """
        named = {} if new is None else {"name": beside(name, new)}
        wanted = _given(policy, pinned_front) | named
        wanted |= {} if pinned is None else {"pinned": pinned}
        return read(SessionSummary, self._call("PATCH", _path(name), body=wanted, session=name))

    def fork(self, name: str, new: str, at: int | None = None) -> SessionSummary:
        """`new` goes on from turn `at` of `name`, else from the end of its main line."""
        wanted = {"name": beside(name, new)} | ({} if at is None else {"at": at})
        answer = self._call("POST", f"{_path(name)}/fork", body=wanted, session=name)
        return read(SessionSummary, answer)

    def export(self, name: str, *, state: bool = True) -> Generator[bytes, None, None]:
        """The session as one file, in parts; a file that breaks off raises Unreachable. Waits as
        long as it takes. Close it where it is not read to the end.
        """
        path, asked = f"{_path(name)}/export", {"state": "true" if state else "false"}
        with (
            self._reaching(),
            self._http.stream("GET", path, params=asked, timeout=_PATIENT) as answer,
        ):
            if answer.is_error:
                answer.read()
                raise failure(answer, name)
            yield from answer.iter_raw(PART)

    def import_session(
        self, file: Iterable[bytes], name: str | None = None, *, state: bool = True
    ) -> ImportReport:
        """A session from such a file. Waits as long as it takes."""
        asked = {"state": "true" if state else "false"}
        headers = {"Content-Type": "application/octet-stream"}
        if name is not None:
            asked["name"] = called(name)
            headers |= acting(owner_of(name))
        with self._reaching():
            answer = self._http.post(
                "/v1/sessions/import", params=asked, content=file, headers=headers, timeout=_PATIENT
            )
        if answer.is_error:
            raise failure(answer, None)
        told = document(answer)
        session = read(SessionSummary, told.get("session"))
        return read(ImportReport, {**told, "session": session})

    def compact(self, name: str) -> SessionSummary:
        """The next rewrite of its history is let through, once."""
        return read(SessionSummary, self._call("POST", f"{_path(name)}/compact", session=name))

    def explain(self, name: str) -> list[Explanation]:
        """Its last rewrites, refused or let through; the oldest comes first."""
        answer = self._call("GET", f"{_path(name)}/explain", session=name)
        return [read(Explanation, entry) for entry in answer["rewrites"]]

    def resume(self, name: str) -> ResumeReport:
        """Waits as long as it takes."""
        answer = self._call("POST", f"{_path(name)}/resume", session=name, timeout=None)
        return read(ResumeReport, answer)

    def park(self, name: str) -> SessionSummary:
        """Waits as long as it takes."""
        answer = self._call("POST", f"{_path(name)}/park", session=name, timeout=None)
        return read(SessionSummary, answer)

    def delete(self, name: str) -> None:
        self._call("DELETE", _path(name), session=name)

    def turns(self, name: str) -> list[TurnSummary]:
        """Of all lines, in order of number."""
        answer = self._call("GET", f"{_path(name)}/turns", session=name)
        return [read(TurnSummary, entry) for entry in answer["turns"]]

    def transcript(self, name: str) -> list[TranscriptMessage]:
        """Of the main line, in order."""
        answer = self._call("GET", f"{_path(name)}/transcript", session=name)
        return [read(TranscriptMessage, entry) for entry in answer["messages"]]

    def verify(self) -> VerifyReport:
        """Reads every stored block and snapshot; waits as long as it takes."""
        return read(VerifyReport, self._call("POST", "/v1/verify", timeout=None))

    def health(self) -> Health:
        """Also while the model loads (the daemon answers 503 then)."""
        return read(Health, self._call("GET", "/health", accept=503))

    def metrics(self) -> dict[str, float]:
        """Values of /metrics by name, with labels as they stand there: `name{label="value"}`."""
        with self._reaching():
            answer = self._http.get("/metrics")
        if answer.is_error:
            raise failure(answer, None)
        return samples(answer.text)

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
        path = f"/s/{segment(name)}/v1/chat/completions"
        with self._reaching(), self._http.stream("POST", path, json=body, timeout=None) as answer:
            if answer.is_error:
                answer.read()
                raise failure(answer, None)
            yield from reply(events(answer.iter_bytes()))

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        session: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        accept: int | None = None,
        owner: str = "",
    ) -> Json:
        patience = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT)
        headers = acting(owner)
        with self._reaching():
            answer = self._http.request(method, path, json=body, timeout=patience, headers=headers)
        if answer.is_error and answer.status_code != accept:
            raise failure(answer, session)
        return document(answer) if answer.content else {}

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise _unreachable(self.endpoint, error) from error


def segment(name: str) -> str:
    """One path segment. A name of dots alone would be taken for a step up."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def _path(name: str) -> str:
    return f"/v1/sessions/{segment(name)}"


def _given(policy: str | None, pinned_front: Sequence[str] | None) -> Json:
    pinned = {} if pinned_front is None else {"pinned_front": list(pinned_front)}
    return ({} if policy is None else {"policy": policy}) | pinned


def _start() -> str:
    return "sudo systemctl start sessiond" if SERVICE_UNIT.exists() else "sessiond serve"


def _unreachable(endpoint: Endpoint, error: httpx.TransportError) -> Unreachable:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        reason = "nothing listens there" if "refused" in str(error) else str(error) or "no answer"
        return Unreachable(
            f"Cannot reach sessiond at {endpoint}: {reason}.",
            hint=f"Start it with: {_start()}, or give its address with --url.",
        )
    if isinstance(error, httpx.TimeoutException):
        reason = f"no answer within {ANSWER_TIMEOUT:.0f} seconds"
    else:
        reason = "the connection broke off"
    return Unreachable(f"sessiond at {endpoint} went silent: {reason}.", hint="See its log.")
