"""uvicorn with our sockets, our deadlines and our way to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from sessiond.api.deadline import DeadlineProtocol
from sessiond.api.errors import logged
from sessiond.api.listening import addresses

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Longer than the pauses in which agents reuse a connection.
_KEEP_ALIVE_SECONDS = 75


async def run_server(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    *,
    on_stop: Callable[[], Awaitable[None]],
    on_bound: Callable[[list[str]], None] = lambda addresses: None,
    stop: asyncio.Event | None = None,
    grace: int = 5,
) -> int:
    """Serves until SIGTERM or SIGINT, closes the listeners and returns the exit code.

    The first signal runs `on_stop` while the port still answers (it drains and flushes);
    connections then have `grace` seconds to end. `on_bound` gets the addresses once they answer.
    Exit code 0: stopped well. 1: `on_stop` failed, which is logged. 128 + signal: a second signal
    came and `on_stop` was cancelled. Signals are only heard on the main thread; setting `stop` is
    the same as the first one.
    """
    config = uvicorn.Config(
        app,
        http=DeadlineProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace,
    )
    server = _Server(config, on_stop, lambda: on_bound(addresses(listeners)))
    heard = asyncio.create_task(_heard(stop or asyncio.Event(), server))
    try:
        await server.serve(sockets=list(listeners))
    finally:
        heard.cancel()
    return server.exit_code


async def _heard(stop: asyncio.Event, server: _Server) -> None:
    await stop.wait()
    server.begin_stop()


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        on_stop: Callable[[], Awaitable[None]],
        on_started: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.exit_code = 0
        self._on_stop = on_stop
        self._on_started = on_started
        self._stopping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Instead of uvicorn's, which raises the signal again and so never exits with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def begin_stop(self) -> None:
        self._stopping = self._stopping or asyncio.create_task(self._stop())

    def _signalled(self, number: int) -> None:
        if self._stopping is None:
            self.begin_stop()
            return
        self.exit_code = 128 + number
        self._stopping.cancel()
        self.force_exit = self.should_exit = True

    async def _stop(self) -> None:
        try:
            await self._on_stop()
        except Exception as error:
            self.exit_code = 1
            logged("stopping", error)
        self.should_exit = True
