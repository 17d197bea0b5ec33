"""The application on a real socket, served from a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

from sessiond.api.app import create_app
from sessiond.api.listening import listen_tcp
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.sessions.turn import Turns


@contextmanager
def served(turns: Turns, config: ApiConfig | None = None) -> Generator[str, None, None]:
    """The base URL of a server that is up, and stopped well afterwards."""
    bound: list[str] = []
    ready = threading.Event()
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    codes: list[int] = []

    def on_bound(addresses: list[str]) -> None:
        bound.extend(addresses)
        ready.set()

    async def nothing() -> None:
        return None

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        app = create_app(turns, config or ApiConfig())
        listeners = listen_tcp("127.0.0.1", 0)
        codes.append(
            await run_server(app, listeners, on_stop=nothing, on_bound=on_bound, stop=stop, grace=2)
        )

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(10)
    try:
        yield bound[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(10)
    assert codes == [0]


@asynccontextmanager
async def serving(turns: Turns, config: ApiConfig | None = None) -> AsyncGenerator[str, None]:
    """As `served`, on the loop that runs: for turns that belong to it."""
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def nothing() -> None:
        return None

    server = asyncio.create_task(
        run_server(
            create_app(turns, config or ApiConfig()),
            listen_tcp("127.0.0.1", 0),
            on_stop=nothing,
            on_bound=lambda addresses: bound.set_result(addresses[0]),
            stop=stop,
            grace=2,
        )
    )
    try:
        yield await asyncio.wait_for(bound, 10)
    finally:
        stop.set()
        assert await asyncio.wait_for(server, 10) == 0


def until(true: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
