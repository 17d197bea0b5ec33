"""A turn as server-sent events: headers at once, one send per token, signs of life in silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessiond.api.connection import ClientGone, while_connected
from sessiond.api.dialect import Dialect
from sessiond.api.errors import failure
from sessiond.engine.events import Progress
from sessiond.errors import EngineError
from sessiond.sessions.turn import Finished, Spoken, TurnEvent


class EventStream(Response):
    """Owns `events`: they are closed when the reply ends, fails, or the client goes."""

    def __init__(
        self,
        events: AsyncGenerator[TurnEvent, None],
        reply: Dialect,
        headers: dict[str, str],
        *,
        keepalive: float,
    ) -> None:
        """`keepalive` is the longest silence in seconds."""
        streaming = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers={**headers, **streaming}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._reply = reply
        self._keepalive = keepalive
        self._spoke = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        self._spoke = asyncio.get_running_loop().time()
        alive = asyncio.create_task(self._keep_alive(send))
        try:
            await while_connected(receive, self._speak(send))
        except ClientGone:
            return
        finally:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _speak(self, send: Send) -> None:
        try:
            await self._relay(send)
        except Exception as error:
            told = self._reply.failed(failure(error))
            await send({"type": "http.response.body", "body": told, "more_body": True})

    async def _relay(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        ended = False
        async with aclosing(self._events) as events:
            async for happened in events:
                chunk = self._worded(happened)
                ended = ended or isinstance(happened, Finished)
                if chunk:
                    self._spoke = now()
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not ended:
            raise EngineError("The turn ended without a report.")

    def _worded(self, happened: TurnEvent) -> bytes:
        if isinstance(happened, Spoken):
            return self._reply.spoken(happened)
        if isinstance(happened, Progress):
            return self._reply.progress(happened)
        return self._reply.last(happened)

    async def _keep_alive(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        while True:
            left = self._spoke + self._keepalive - now()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self._spoke = now()
            await send(
                {"type": "http.response.body", "body": self._reply.alive(), "more_body": True}
            )
