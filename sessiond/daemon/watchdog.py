"""What the supervisor hears while the daemon runs: that it gets on, and how it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sessiond.notify import Supervisor
from sessiond.sessions.health import Glance
from sessiond.sessions.turn import Status

logger = logging.getLogger(__name__)
TELL_S = 5.0
"""So often at most the status is told, and more time asked for."""
LOAD_S, STOP_S = 600.0, 120.0
"""Without anything done for so long no more time is asked for. Reading a large model's file for its
digest, and trying it out in a child process, shows no progress."""
_PINGS = 3
"""In the time in which one must come."""


class Watch:
    """Event loop only. `look` costs nothing."""

    def __init__(self, supervisor: Supervisor, look: Callable[[], Glance]) -> None:
        self._supervisor = supervisor
        self._look = look
        self._told = ""
        self._asking_until = time.monotonic() + LOAD_S
        self._patience = LOAD_S
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Until `close`. Asks for more time to start until `ready`."""
        self._tasks = [asyncio.create_task(self._tell())]
        if self._supervisor.watchdog is not None:
            self._tasks.append(asyncio.create_task(self._ping(self._supervisor.watchdog)))

    def ready(self) -> None:
        self._patience = 0.0
        self._told = status(self._look())
        self._supervisor.ready(self._told)

    def reloading(self) -> None:
        """`ready` must follow."""
        self._supervisor.reloading()

    def stopping(self, why: str = "") -> None:
        """From now on asks for more time to stop. `why`: because something failed."""
        self._patience = STOP_S
        self._asking_until = time.monotonic() + STOP_S
        self._told = why or "Stopping"
        self._supervisor.stopping(self._told)
        self._supervisor.extend()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ping(self, interval: float) -> None:
        """As long as the engine has nothing to do, or got something done within `interval`."""
        hangs = False
        while True:
            silence = self._look().silence
            if silence < interval:
                self._supervisor.ping()
            elif not hangs:
                logger.error("The engine has got nothing done for %.0f s: it hangs.", interval)
            hangs = silence >= interval
            await asyncio.sleep(interval / _PINGS)

    async def _tell(self) -> None:
        done = self._look().done
        while True:
            await asyncio.sleep(TELL_S)
            glance = self._look()
            if (text := status(glance)) != self._told:
                self._told = text
                self._supervisor.status(text)
            if glance.done != done:
                done = glance.done
                self._asking_until = time.monotonic() + self._patience
            if self._patience and time.monotonic() < self._asking_until:
                self._supervisor.extend()


def status(glance: Glance) -> str:
    """One line for `systemctl status`."""
    counts = glance.counts
    told = [f"{counts.sessions} sessions", f"{counts.running} running", f"{counts.queued} waiting"]
    if counts.unsaved:
        told.append(f"{counts.unsaved} turns not saved")
    return f"{_doing(glance)}: {', '.join(told)}"


def _doing(glance: Glance) -> str:
    far = f" ({glance.loading:.0%})" if glance.loading is not None else ""
    doings: dict[Status, str] = {
        "ok": f"Serving {glance.model}",
        "loading": f"Loading the model{far}",
        "draining": "Stopping",
    }
    return doings.get(glance.status, glance.status.capitalize())
