"""What really goes over the wire below the clients, and whether it is well-formed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2

Json = dict[str, Any]
_LAST = {
    "/chat/completions": ("[DONE]",),
    "/messages": ("message_stop", "error"),
    "/responses": ("response.completed", "response.incomplete", "response.failed"),
}


@dataclass
class Exchange:
    path: str
    status: int
    streams: bool
    retry: str | None
    body: bytes = b""

    def events(self) -> list[Any]:
        """The data of the stream, checked line by line: no half event, one end, nothing after."""
        assert self.streams
        text = self.body.decode()
        assert text.endswith("\n\n")
        told: list[Any] = []
        for block in text.removesuffix("\n\n").split("\n\n"):
            lines = [line for line in block.split("\n") if not line.startswith(":")]
            if not lines:
                continue
            name = lines.pop(0).removeprefix("event: ") if len(lines) == 2 else None
            (data,) = lines
            assert data.startswith("data: ")
            read = data[6:]
            told.append(read if read == "[DONE]" else json.loads(read))
            assert name is None or told[-1]["type"] == name
        ends = next(ends for path, ends in _LAST.items() if self.path.endswith(path))
        kinds = [one if isinstance(one, str) else one.get("type") for one in told]
        assert [at for at, kind in enumerate(kinds) if kind in ends] == [len(kinds) - 1]
        return told


class _Copied(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, exchange: Exchange) -> None:
        self._stream, self._exchange = stream, exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._exchange.body += chunk
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class Recorder(httpx2.AsyncHTTPTransport):
    """Keeps every answer, those that a client tries again after, too."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        kind = response.headers.get("content-type", "")
        exchange = Exchange(
            request.url.path,
            response.status_code,
            kind.startswith("text/event-stream"),
            response.headers.get("retry-after"),
        )
        self.exchanges.append(exchange)
        response.stream = _Copied(response.stream, exchange)
        return response

    @property
    def last(self) -> Exchange:
        return self.exchanges[-1]
