"""uvicorn's protocol with ends: connections that trickle or stay silent are closed, and what is
no HTTP is answered with an error object.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from sessiond.api.failure import Failure

RECEIPT_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 16 * 1024


class DeadlineProtocol(H11Protocol):
    """A request must be complete `RECEIPT_SECONDS` after its first byte (or the opening).

    Each 16 KiB it brings give it a second more. Between requests uvicorn's own timer runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receipt: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        if self._receipt is None:
            self._expect()
        self._received += len(data)
        super().data_received(data)
        if not self._incomplete():
            self._relax()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._receipt is None and self._incomplete():
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

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

    def _expect(self) -> None:
        self._since, self._received = self.loop.time(), 0
        self._receipt = self.loop.call_later(RECEIPT_SECONDS, self._overdue)

    def _relax(self) -> None:
        if self._receipt:
            self._receipt.cancel()
            self._receipt = None

    def _overdue(self) -> None:
        allowed = RECEIPT_SECONDS + self._received / SLOWEST_BYTES_PER_SECOND
        left = self._since + allowed - self.loop.time()
        if left > 0:
            self._receipt = self.loop.call_later(left, self._overdue)
        else:
            self.transport.close()
