"""uvicorn's protocol with ends: connections that trickle or stay silent are closed, and what is
no HTTP is answered with an error object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import h11
import orjson
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from sessiond.api.failure import Failure
from sessiond.api.upload import is_download, is_upload

RECEIPT_SECONDS = 15.0
FETCH_SECONDS = 60.0
"""A disk that files are exported to may be busy for longer than a network is silent."""
SLOWEST_BYTES_PER_SECOND = 16 * 1024


class DeadlineProtocol(H11Protocol):
    """A request must be complete `RECEIPT_SECONDS` after its first byte (or the opening).

    Each 16 KiB it brings give it a second more, but never more than `RECEIPT_SECONDS` from then on:
    no burst buys silence. Between requests uvicorn's own timer runs. An export has to be read as
    fast, looked at every `FETCH_SECONDS`: what it has is kept on disk for as long as it goes on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receipt: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._fetching: asyncio.TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        if self._receipt is None:
            self._expect()
        earned = self._due + len(data) / SLOWEST_BYTES_PER_SECOND
        self._due = min(earned, self.loop.time() + RECEIPT_SECONDS)
        super().data_received(data)
        if not self._incomplete():
            self._relax()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._receipt is None and self._incomplete():
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        self._fetched()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._fetching is None and self._sends(is_download):
            self._fetch()

    def resume_writing(self) -> None:
        self._fetched()
        super().resume_writing()

    def shutdown(self) -> None:
        self.cut_file()
        super().shutdown()

    def cut_file(self) -> None:
        """Ends an export, and an import that is still coming: a stop does not wait for them."""
        coming = self.conn.their_state is h11.SEND_BODY and self._sends(is_upload)
        if coming or self._sends(is_download):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's is plain text; clients look for an error object in every answer."""
        body = orjson.dumps(Failure(400, "This is no valid HTTP request.", "invalid_http").body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        opening = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (opening, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _incomplete(self) -> bool:
        state = self.conn.their_state
        return state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def _sends(self, what: Callable[[Scope], bool]) -> bool:
        """Whether a request of this kind is being answered."""
        cycle = self.cycle
        return bool(cycle) and not cycle.response_complete and what(cast(Scope, cycle.scope))

    def _expect(self) -> None:
        self._due = self.loop.time() + RECEIPT_SECONDS
        self._receipt = self.loop.call_later(RECEIPT_SECONDS, self._overdue)

    def _relax(self) -> None:
        if self._receipt:
            self._receipt.cancel()
            self._receipt = None

    def _overdue(self) -> None:
        if self.flow.read_paused:
            self._due = self.loop.time() + RECEIPT_SECONDS  # it is us who are slow
        left = self._due - self.loop.time()
        if left > 0:
            self._receipt = self.loop.call_later(left, self._overdue)
        else:
            self.transport.close()

    def _fetch(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._fetching = self.loop.call_later(FETCH_SECONDS, self._stalled)

    def _fetched(self) -> None:
        if self._fetching:
            self._fetching.cancel()
            self._fetching = None

    def _stalled(self) -> None:
        """Nothing is written while it waits to be read."""
        taken = self._unread - self.transport.get_write_buffer_size()
        if taken < FETCH_SECONDS * SLOWEST_BYTES_PER_SECOND:
            self.transport.abort()
        else:
            self._fetch()
