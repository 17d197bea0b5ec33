"""One daemon process: sockets, ledger, lifecycle and server, in the order that keeps promises."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import disk_usage
from typing import NoReturn

from sessiond import logs
from sessiond.api.app import create_app
from sessiond.api.keys import Keys
from sessiond.api.listening import listen_tcp, listen_unix
from sessiond.api.presets import read_presets
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.config.settings import Config
from sessiond.daemon.console import Console
from sessiond.daemon.loading import Loader
from sessiond.daemon.reload import Difference, Reloading
from sessiond.daemon.watchdog import Watch
from sessiond.directories import StateDirs
from sessiond.errors import ConfigError, InvalidRequest, SessiondError
from sessiond.notify import supervisor
from sessiond.sessions.calls.formats import format_named
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.lifecycle import Lifecycle
from sessiond.sessions.limits import Limits
from sessiond.sessions.register import Register
from sessiond.sessions.rules import Rules
from sessiond.sessions.volatility import Volatility
from sessiond.units import Share

logger = logging.getLogger("sessiond")
_SWITCH_S = 0.0005
"""How long the engine thread may wait for the interpreter while HTTP is being served."""


def serve(config: Config, read: Callable[[], Config] | None = None) -> int:
    """Blocks until SIGTERM or SIGINT; the exit code. `read` gives the settings anew, for SIGHUP.

    Raises ConfigError, LedgerError. A second signal ends the process at once, without returning.
    """
    logs.configure(config.log)
    sys.setswitchinterval(_SWITCH_S)
    config.check()
    os.umask(0o077)
    dirs = config.directories()
    dirs.make()
    with dirs.locked():
        return asyncio.run(_serve(config, dirs, read or (lambda: config)))


async def _serve(config: Config, dirs: StateDirs, read: Callable[[], Config]) -> int:
    return await _Service(config, dirs, read).run()


class _Service:
    """Event loop only."""

    def __init__(self, config: Config, dirs: StateDirs, read: Callable[[], Config]) -> None:
        self._config = config
        rules, self._api_config = _rules(config), _api_config(config)
        if config.model.tool_format:
            format_named(config.model.tool_format)
        self._console = Console(Path(config.model.path).name)
        self._loader = Loader(config, dirs, self._console.progress)
        register = Register(Ledger(dirs.state / "ledger.sqlite"))
        self._lifecycle = Lifecycle(register, self._loader, _limits(config), rules)
        self._watch = Watch(supervisor(), self._lifecycle.glance)
        self._reloading = Reloading(config, read, self._apply)
        self._app = create_app(self._lifecycle, self._api_config)
        self._on_terminal = sys.stderr.isatty()
        self._bound, self._stop_wanted = asyncio.Event(), asyncio.Event()
        self._failure = ""
        self._is_ready = self._is_stopping = self._has_lost = False
        self._resizing: asyncio.Task[None] | None = None

    async def run(self) -> int:
        server = self._config.server
        listeners = listen_tcp(server.host, server.port)
        if (socket_path := server.socket()) is not None:
            listeners.append(listen_unix(socket_path))
        self._console.watch(self._lifecycle)
        await self._lifecycle.start()
        self._watch.start()
        announcing = asyncio.create_task(self._announce())
        code = await run_server(
            self._app,
            listeners,
            on_stop=self._stop,
            on_bound=self._listening,
            stop=self._stop_wanted,
            on_reload=self._reload,
            on_second=self._leave,
        )
        announcing.cancel()
        await self._watch.close()
        self._console.close()
        self._unlink_socket()
        return 1 if self._failure or self._has_lost else code

    def _leave(self, code: int) -> NoReturn:
        """As after `kill -9`: what is being written is written no further, and nothing needs it."""
        logger.warning("A second signal: leaving at once.")
        self._unlink_socket()
        os._exit(code)

    def _unlink_socket(self) -> None:
        socket_path = self._config.server.socket()
        if socket_path is not None:
            socket_path.unlink(missing_ok=True)

    def _listening(self, addresses: list[str]) -> None:
        self._console.bound(addresses)
        self._bound.set()

    async def _announce(self) -> None:
        """Says when the daemon can answer. If it never will, it stops."""
        try:
            await self._bound.wait()
            await self._lifecycle.loaded()
        except SessiondError as error:
            self._failure = str(error)
            logger.error("%s", error)
            self._stop_wanted.set()
            return
        if self._is_stopping:
            return
        self._is_ready = True
        self._watch.ready()
        self._console.ready(await self._lifecycle.health())

    async def _stop(self) -> None:
        self._is_stopping, self._is_ready = True, False
        self._watch.stopping(f"Failed: {self._failure}" if self._failure else "")
        self._console.close()
        report = await self._lifecycle.stop()
        self._has_lost = report.unsaved_turns > 0
        if not self._failure:
            self._console.stopped(report)

    # --- reloading

    async def _reload(self) -> None:
        if self._on_terminal and not sys.stderr.isatty():
            self._stop_wanted.set()  # the terminal it was started from is gone
            return
        if self._is_ready:
            self._watch.reloading()
        try:
            await self._reloading.reload()
        finally:
            if self._is_ready:
                self._watch.ready()

    def _apply(self, found: Difference) -> list[str]:
        """Raises ConfigError, and nothing has changed."""
        config = found.config
        config.check()
        limits, rules, api_config = _limits(config), _rules(config), _api_config(config)
        if self._api_config.keys and not api_config.keys:
            raise ConfigError(
                "The API keys are gone: nobody would need one from now on.",
                hint="Put them back, or restart to do without.",
                param="auth.keys_file",
            )
        in_files = [] if api_config.keys == self._api_config.keys else ["auth.keys_file"]
        self._lifecycle.apply(limits, rules)
        self._api_config = self._app.state.config = api_config
        if any(key.startswith("log.") for key in found.live):
            logs.configure(config.log)
        if any(key.startswith("store.") for key in found.live):
            self._loader.limit_store(config)
            self._resizing = asyncio.create_task(self._resize())
        return in_files

    async def _resize(self) -> None:
        """What no longer fits is removed."""
        try:
            await self._lifecycle.resize(self._loader.store_limits)
        except (SessiondError, OSError) as error:
            logger.error("The store keeps its size: %s", error)


def _limits(config: Config) -> Limits:
    return Limits(
        queue=config.server.queue,
        load_wait=config.server.load_wait,
        drain=config.server.drain,
        park=None if config.sessions.park == "pressure" else config.sessions.park,
        keep=config.sessions.keep,
        keep_free=_keep_free(config),
        unload_after=config.model.unload_after,
        warm=config.sessions.warm,
    )


def _keep_free(config: Config) -> int:
    """Bytes of the disk with the state directory."""
    wanted, state = config.store.keep_free, config.directories().state
    return wanted.of(disk_usage(state).total) if isinstance(wanted, Share) else wanted


def _rules(config: Config) -> Rules:
    """Raises ConfigError naming sessions.pinned_front."""
    sessions = config.sessions
    try:
        pinned = Volatility(sessions.pinned_front).names
    except InvalidRequest as error:
        raise ConfigError(error.message, hint=error.hint, param="sessions.pinned_front") from error
    return Rules(
        policy=sessions.policy,
        auto_policy=sessions.auto_policy,
        max_rewind=sessions.max_rewind_tokens,
        reasoning=sessions.reasoning,
        pinned_front=pinned,
    )


def _keys(config: Config) -> Keys:
    """Of a file that the settings name at least one; systemd's credential may have none.

    Raises ConfigError.
    """
    path = config.auth.keys_path()
    keys = Keys.read(path) if path else Keys()
    if config.auth.keys_file and not keys:
        raise ConfigError(
            f"The keys file {path} has no keys: nobody would need one.",
            hint="Make one with `sessiond key new OWNER`, or take auth.keys_file away.",
            param="auth.keys_file",
        )
    return keys


def _api_config(config: Config) -> ApiConfig:
    """Raises ConfigError for presets that no template can follow."""
    return ApiConfig(
        keys=_keys(config),
        allowed_hosts=config.server.allowed_hosts,
        max_body=config.server.max_body,
        strict_name=config.model.strict_name,
        presets=read_presets(config.presets),
    )
