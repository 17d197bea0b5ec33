"""A whole daemon behind HTTP in a thread of its own: everything is real but the model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sessiond.api.routing import ApiConfig
from tests.api.serving import serving
from tests.sessions.kinds import rig_of

LIMIT = 512
"""Tokens of a conversation: few, so that a reply that nobody bounded ends soon."""


@contextmanager
def living(
    directory: Path,
    config: ApiConfig | None = None,
    *,
    kind: str = "attention",
    limit: int = LIMIT,
) -> Generator[str, None, None]:
    """The base URL."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    up: asyncio.Future[str] = loop.create_future()

    async def main() -> None:
        rig = rig_of(kind, directory)
        rig.limit = limit
        async with rig.daemon() as daemon, serving(daemon.lifecycle, config) as url:
            up.set_result(url)
            await stop.wait()

    ready = threading.Event()
    up.add_done_callback(lambda _: ready.set())
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    assert ready.wait(20), "the daemon did not start"
    try:
        yield up.result()
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
