"""Who may run: so many lines at once, named sessions before unnamed ones, then first come.

A line that runs has come in through `landing`, one at a time, which chooses its state and its
cells. When one has left, those that wait for cells look again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

from sessiond.errors import QueueFull, Unavailable


class Floor:
    """Event loop only."""

    def __init__(self, capacity: int) -> None:
        """`capacity` turns may wait. One line runs at a time until `lines` is set."""
        self.lines = 1
        self.running = 0
        self.changes = 0
        self.landing = asyncio.Lock()
        self.capacity = capacity
        self._order = count()
        self._waiting: list[tuple[bool, int, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()
        self._closed = False

    def check(self, waiting: int) -> None:
        """Raises QueueFull if a turn that comes behind `waiting` others could not even wait."""
        if self.running + waiting >= self.capacity + self.lines:
            raise QueueFull(
                f"{waiting} requests are waiting already.", hint="Try again in a moment."
            )

    @asynccontextmanager
    async def line(self, *, named: bool) -> AsyncGenerator[None, None]:
        """A place for a line, held inside. Waits for one. Raises Unavailable once it is closed."""
        await self._enter(named)
        try:
            yield
        finally:
            self.running -= 1
            self.left()
            self._let_in()

    def close(self) -> None:
        """The daemon stops: who waits or comes raises Unavailable."""
        self._closed = True
        waiting, self._waiting = self._waiting, []
        for *_, turn in waiting:
            if not turn.done():
                turn.set_exception(_stopping())

    @property
    def full(self) -> bool:
        """Whether a line that comes now has to wait."""
        return self.running >= self.lines or bool(self._waiting)

    def left(self) -> None:
        """A line has given up cells: those that wait for some look again."""
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, since: int) -> None:
        """Wait until a line has given up cells since `changes` was that."""
        while self.changes == since:
            await self._changed.wait()

    async def _enter(self, named: bool) -> None:
        if self._closed:
            raise _stopping()
        if self.running < self.lines and not self._waiting:
            self.running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (not named, next(self._order), turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.running -= 1
                self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and self.running < self.lines:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self.running += 1
                turn.set_result(None)


def _stopping() -> Unavailable:
    return Unavailable("sessiond is stopping.", hint="Try again in a moment.")
