"""What is done beside turns for as long as the model is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

from sessiond.errors import EngineError
from sessiond.metrics import UNSAVED_TURNS
from sessiond.sessions.calm import Calm
from sessiond.sessions.floor import Floor
from sessiond.sessions.lander import Machine
from sessiond.sessions.limits import Limits
from sessiond.sessions.register import Register
from sessiond.sessions.saver import Saver

_RETRY_S = 5.0
_LOOK_S = 1.0
IDLE_S = 120.0
"""A line that was idle for so long is parked while others run."""
Spawn = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]


class Chores:
    """Event loop only. `tasks` are those under way."""

    def __init__(
        self,
        register: Register,
        floor: Floor,
        limits: Callable[[], Limits],
        spawn: Spawn,
        calm: Calm,
    ) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self._register = register
        self._floor = floor
        self._limits = limits
        self._spawn = spawn
        self._calm = calm
        self._saver: Saver | None = None

    def begin(
        self, machine: Machine, busy: Callable[[], bool], *others: Coroutine[None, None, None]
    ) -> None:
        """`busy`: something is being evaluated. `others` are done, too."""
        self._saver = machine.saver
        chores = (self._retry_unsaved(), self._park_idle(machine), *others)
        self.tasks = [
            self._spawn(chore) for chore in (machine.saver.watch(busy, self._calm), *chores)
        ]

    async def end(self) -> None:
        """What the saver is at is done first."""
        if self._saver is None:
            return
        self._saver.rest()
        for chore in self.tasks[1:]:
            chore.cancel()
        await asyncio.wait(self.tasks)
        self._saver, self.tasks = None, []

    async def _retry_unsaved(self) -> None:
        while True:
            await self._calm.pause(_RETRY_S, busy=self._register.unsaved > 0)
            await self._register.retry()
            UNSAVED_TURNS.set(self._register.unsaved)

    async def _park_idle(self, machine: Machine) -> None:
        """Idle lines slow down those that run, and coming back is a read from the page cache."""
        while True:
            after = self._limits().park
            waiting = after is not None and machine.engine.core.resident > 0
            await self._calm.pause(_LOOK_S, busy=waiting or self._floor.running > 0)
            after = self._limits().park
            if after is None and self._floor.running:
                after = IDLE_S
            if after is not None:
                with suppress(EngineError):
                    async with machine.residency.lock:
                        await machine.residency.park_idle(after)
