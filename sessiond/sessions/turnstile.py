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
        self.running = 0

    def check(self, waiting: int) -> None:
        """Raises QueueFull if a turn that comes behind `waiting` others could not even wait."""
        if self.running + waiting > self._capacity:
            raise QueueFull(
                f"{waiting} requests are waiting already.", hint="Try again in a moment."
            )

    @asynccontextmanager
    async def pass_through(self) -> AsyncGenerator[None, None]:
        async with self._lock:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1
