"""One daemon process: sockets, ledger, lifecycle and server, in the order that keeps promises."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from sessiond.api.app import create_app
from sessiond.api.keys import Keys
from sessiond.api.listening import listen_tcp, listen_unix
from sessiond.api.presets import read_presets
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.config.settings import Config
from sessiond.daemon.console import Console
from sessiond.daemon.loading import Loader
from sessiond.directories import StateDirs
from sessiond.errors import ConfigError, InvalidRequest, SessiondError
from sessiond.sessions.calls.formats import format_named
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.lifecycle import Lifecycle, Limits
from sessiond.sessions.register import Register
from sessiond.sessions.rules import Rules
from sessiond.sessions.volatility import Volatility

logger = logging.getLogger("sessiond")
_SWITCH_S = 0.0005
"""How long the engine thread may wait for the interpreter while HTTP is being served."""


def serve(config: Config) -> int:
    """Blocks until SIGTERM or SIGINT; the exit code. Raises ConfigError, LedgerError."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sys.setswitchinterval(_SWITCH_S)
    config.check()
    os.umask(0o077)
    dirs = config.directories()
    dirs.make()
    with dirs.locked():
        return asyncio.run(_serve(config, dirs))


async def _serve(config: Config, dirs: StateDirs) -> int:
    rules, api_config = _rules(config), _api_config(config)
    if config.model.tool_format:
        format_named(config.model.tool_format)
    ledger = Ledger(dirs.state / "ledger.sqlite")
    listeners = listen_tcp(config.server.host, config.server.port)
    socket_path = config.server.socket()
    if socket_path is not None:
        listeners.append(listen_unix(socket_path))
    console = Console(Path(config.model.path).name)
    loader = Loader(config, dirs, console.progress)
    lifecycle = Lifecycle(Register(ledger), loader, _limits(config), rules)
    console.watch(lifecycle)
    stop = asyncio.Event()
    await lifecycle.start()
    loading = asyncio.create_task(_announce(lifecycle, console, stop))
    app = create_app(lifecycle, api_config)
    code = await run_server(
        app, listeners, on_stop=lifecycle.stop, on_bound=console.bound, stop=stop
    )
    failed = await loading if loading.done() else False
    loading.cancel()
    console.close()
    if socket_path is not None:
        socket_path.unlink(missing_ok=True)
    return 1 if failed else code


async def _announce(lifecycle: Lifecycle, console: Console, stop: asyncio.Event) -> bool:
    """Says when the daemon can answer. Returns True if it never will: then it stops."""
    try:
        await lifecycle.loaded()
    except SessiondError as error:
        console.close()
        logger.error("%s", error)
        stop.set()
        return True
    console.ready(await lifecycle.health())
    return False


def _limits(config: Config) -> Limits:
    return Limits(
        queue=config.server.queue,
        load_wait=config.server.load_wait,
        park=None if config.sessions.park == "pressure" else config.sessions.park,
    )


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


def _api_config(config: Config) -> ApiConfig:
    """Raises ConfigError for presets that no template can follow."""
    keys = config.auth.keys_path()
    return ApiConfig(
        keys=Keys.read(keys) if keys else Keys(),
        allowed_hosts=config.server.allowed_hosts,
        max_body=config.server.max_body,
        strict_name=config.model.strict_name,
        presets=read_presets(config.presets),
    )
