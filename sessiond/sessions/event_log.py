"""What a turn has reported so far, for any number of readers, each from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from sessiond.engine.events import Progress
from sessiond.errors import SessiondError
from sessiond.sessions.turn import TurnEvent

_UNDER_WAY = Progress(0, 0, 0, 0.0)


class EventLog:
    """Event loop only."""

    def __init__(self, on_left: Callable[[], None]) -> None:
        """`on_left` is called when the last reader leaves before the end."""
        self.readers = 0
        self._on_left = on_left
        self._events: list[TurnEvent] = []
        self._error: SessiondError | None = None
        self._over = False
        self._more = asyncio.Event()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def add(self, event: TurnEvent) -> None:
        self._events.append(event)
        self._wake()

    def end(self, error: SessiondError | None = None) -> None:
        """There is no more; readers that get here raise `error`. Only the first call counts."""
        if not self._over:
            self._over, self._error = True, error
            self._wake()

    async def read(self) -> AsyncGenerator[TurnEvent, None]:
        """A reader that counts from now on, also before its first event is asked for."""
        self.readers += 1
        events = self._read()
        await anext(events)
        return events

    async def _read(self) -> AsyncGenerator[TurnEvent, None]:
        position = 0
        try:
            yield _UNDER_WAY
            while True:
                while position < len(self._events):
                    position += 1
                    yield self._events[position - 1]
                if self._over:
                    break
                await self._more.wait()
            if self._error is not None:
                raise self._error
        finally:
            self.readers -= 1
            if not self.readers and not self._over:
                self._on_left()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
