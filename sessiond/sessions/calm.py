"""How often chores look: at their own pace while things happen, hardly ever while nothing does."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

CALM_S = 30.0
"""After so long without anything the daemon is at rest: state is written, pins are told."""
RARE_S = 60.0
"""Chores of a daemon at rest look so often, in case something was not told to them."""


class Calm:
    """Event loop only."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._stirred = asyncio.Event()

    @property
    def resting(self) -> bool:
        """Nothing has happened for a while."""
        return time.monotonic() - self._since >= CALM_S

    def stir(self) -> None:
        """Something begins, ends or was changed: chores go on at their own pace."""
        self._since = time.monotonic()
        self._stirred.set()
        self._stirred = asyncio.Event()

    async def pause(self, seconds: float, *, busy: bool = False, rare: float = RARE_S) -> None:
        """`seconds`, while things happen or the chore is `busy`; at rest until something does, or
        for `rare` seconds."""
        if busy or not self.resting:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(rare):
                await self._stirred.wait()
