"""How the daemon's turns end and its state comes to disk when it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from sessiond.elapsed import ms_since
from sessiond.sessions.floor import Floor
from sessiond.sessions.lander import Machine
from sessiond.sessions.model_host import ModelHost
from sessiond.sessions.pins import Pins
from sessiond.sessions.register import Register
from sessiond.sessions.saver import Flushed
from sessiond.sessions.turn_task import TurnTask

LetGo = Callable[[Machine, Callable[[], None]], Awaitable[Flushed]]
CUT_S = 60.0
"""So long a reply that was cut may take to be committed: a micro-batch, and the disk."""


@dataclass(frozen=True, slots=True)
class StopReport:
    """`flushed` at the end, `ms` for all of it, drain included.

    Of the replies under way some `ended` by themselves and some were `cut`; `refused` had not begun
    yet. `unsaved_turns` could not be written to the ledger.
    """

    flushed: Flushed
    ms: float
    ended: int
    cut: int
    refused: int
    unsaved_turns: int


class Stopping:
    """One stop. Event loop only."""

    def __init__(
        self,
        register: Register,
        host: ModelHost,
        floor: Floor,
        turns: Mapping[asyncio.Task[None], TurnTask],
        busy: Mapping[str, asyncio.Event],
        pins: Pins,
    ) -> None:
        """`turns` are under way, sessions of `busy` on their way in or out; both change."""
        self._register = register
        self._host = host
        self._floor = floor
        self._turns = turns
        self._busy = busy
        self._pins = pins
        self._steps = 0

    @property
    def done(self) -> int:
        """Grows with whatever gets done: while it does, the stop goes on."""
        shelf = self._host.shelf
        return self._steps + (shelf.store.written if shelf else 0)

    async def run(self, drain: float, let_go: LetGo) -> StopReport:
        """Replies may go on for `drain` seconds. A model that is loading is loaded to the end
        first: that cannot be interrupted. `let_go` saves and frees a machine but for its store.

        Whatever fails, everything is let go. Raises EngineError for an engine that has stopped.
        """
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._register.close)
            stack.push_async_callback(self._pins.close)
            ended, cut, refused = await self._end_turns(drain)
            await self._host.settle()
            await self._register.retry()
            await self._pins.close()
            flushed, machine = Flushed(), self._host.machine
            if self._host.shelf is not None:
                stack.callback(self._host.shelf.store.close)
            if machine is not None:
                flushed = await let_go(machine, self._step)
            unsaved = await self._register.retry()
        return StopReport(flushed, ms_since(began), ended, cut, refused, unsaved)

    async def _end_turns(self, drain: float) -> tuple[int, int, int]:
        """How many replies ended by themselves, were cut, and had not begun yet."""
        refused = sum(turn.waiting for turn in self._turns.values())
        replies = [turn for turn in self._turns.values() if turn.answering]
        self._floor.close()
        if not await self._ended_within(drain):
            for turn in list(self._turns.values()):
                turn.cut()
            await self._ended_within(CUT_S)
        cut = sum(turn.was_cut for turn in replies)
        return len(replies) - cut, cut, refused

    async def _ended_within(self, seconds: float) -> bool:
        """Whether nothing is under way in the context any more."""
        try:
            async with asyncio.timeout(seconds):
                while self._turns:
                    done, _ = await asyncio.wait(
                        list(self._turns), return_when=asyncio.FIRST_COMPLETED
                    )
                    self._steps += len(done)
                for over in list(self._busy.values()):
                    await over.wait()
                async with self._floor.landing:
                    return True
        except TimeoutError:
            return False

    def _step(self) -> None:
        self._steps += 1
