"""uvicorn with our sockets, our deadlines and our way to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

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
    on_reload: Callable[[], Awaitable[None]] | None = None,
    on_second: Callable[[int], None] = lambda code: None,
    grace: int = 5,
) -> int:
    """Serves until SIGTERM or SIGINT, closes the listeners and returns the exit code.

    The first signal runs `on_stop` while the port still answers (it drains and flushes);
    connections then have `grace` seconds to end. `on_bound` gets the addresses once they answer.
    Exit code 0: stopped well. 1: `on_stop` failed, which is logged. 128 + signal: a second signal
    came, `on_second` was called with the code and need not return, and `on_stop` was cancelled.
    SIGHUP runs `on_reload`, if there is one and nothing stops yet. Signals are only heard on the
    main thread; setting `stop` is the same as the first one.
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
    server = _Server(config, on_stop, lambda: on_bound(addresses(listeners)), on_reload, on_second)
    heard = asyncio.create_task(_heard(stop or asyncio.Event(), server))
    try:
        await server.serve(sockets=list(listeners))
    finally:
        heard.cancel()
    return server.exit_code


async def _heard(stop: asyncio.Event, server: _Server) -> None:
    await stop.wait()
    server.begin_stop()


class _State(ServerState):
    """With the date at the moment it is asked for: uvicorn wakes ten times a second for it."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        pass


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        on_stop: Callable[[], Awaitable[None]],
        on_started: Callable[[], None],
        on_reload: Callable[[], Awaitable[None]] | None,
        on_second: Callable[[int], None],
    ) -> None:
        super().__init__(config)
        self.server_state = _State()
        self._over = asyncio.Event()
        self._on_second = on_second
        self._on_reload = on_reload
        self._reloads: set[asyncio.Task[None]] = set()
        self.exit_code = 0
        self._on_stop = on_stop
        self._on_started = on_started
        self._stopping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def main_loop(self) -> None:
        """uvicorn's looks ten times a second whether it is over."""
        await self._over.wait()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Instead of uvicorn's, which raises the signal again and so never exits with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        if self._on_reload is not None:
            loop.add_signal_handler(signal.SIGHUP, self._hung_up, self._on_reload)
        try:
            yield
        finally:
            for number in (*_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def begin_stop(self) -> None:
        self._stopping = self._stopping or asyncio.create_task(self._stop())

    def _signalled(self, number: int) -> None:
        if self._stopping is None:
            self.begin_stop()
            return
        self.exit_code = 128 + number
        self._on_second(self.exit_code)
        self._stopping.cancel()
        self.force_exit = self.should_exit = True
        self._over.set()

    def _hung_up(self, on_reload: Callable[[], Awaitable[None]]) -> None:
        if self._stopping is None:
            task = asyncio.create_task(self._reload(on_reload))
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    async def _reload(self, on_reload: Callable[[], Awaitable[None]]) -> None:
        try:
            await on_reload()
        except Exception as error:
            logged("reloading", error)

    async def _stop(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, DeadlineProtocol):
                connection.cut_file()
        try:
            await self._on_stop()
        except Exception as error:
            self.exit_code = 1
            logged("stopping", error)
        self.should_exit = True
        self._over.set()
