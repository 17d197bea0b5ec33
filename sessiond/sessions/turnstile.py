"""The queue before the engine: one turn at a time, first come first served, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sessiond.errors import QueueFull


class Turnstile:
    """Event loop only."""

    def __init__(self, capacity: int) -> None:
        """`capacity` turns may wait."""
        self._capacity = capacity
        self._lock = asyncio.Lock()
        self.waiting = 0
        self.running = 0

    @property
    def busy(self) -> bool:
        return self.running > 0 or self.waiting > 0

    def check(self) -> None:
        """Raises QueueFull if a turn that came now could not even wait."""
        if self.running and self.waiting >= self._capacity:
            raise QueueFull(
                f"{self.waiting} requests are waiting already.", hint="Try again in a moment."
            )

    @asynccontextmanager
    async def pass_through(self) -> AsyncGenerator[None, None]:
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._lock.release()
