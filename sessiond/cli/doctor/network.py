"""Where the daemon listens: is the port free, or ours?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.api.listening import listen_tcp
from sessiond.cli.doctor.finding import Finding, note, ok, problem
from sessiond.config.settings import Config
from sessiond.errors import ConfigError

MODE = 0o660


@dataclass(frozen=True, slots=True)
class Facts:
    """`ours`: the daemon runs. `refusal` is why the port cannot be had, "" where it is free.
    `socket_mode` None: there is no socket file. `exposed`: other machines can reach the port.
    """

    host: str
    port: int
    ours: bool
    refusal: str = ""
    socket: Path | None = None
    socket_mode: int | None = None
    exposed: bool = False


def observe(config: Config, *, running: bool) -> Facts:
    host, port, socket = config.server.host, config.server.port, config.server.socket()
    refusal = ""
    if not running:
        try:
            for listener in listen_tcp(host, port):
                listener.close()
        except ConfigError as error:
            refusal = error.message
    is_there = socket is not None and socket.is_socket()
    mode = socket.stat().st_mode & 0o777 if is_there and socket else None
    return Facts(host, port, running, refusal, socket, mode, not config.server.is_loopback)


def judge(facts: Facts) -> Iterator[Finding]:
    where = f"{facts.host} port {facts.port}"
    if facts.refusal:
        yield problem(
            "port",
            facts.refusal,
            "The daemon cannot start.",
            f"ss -ltnp 'sport = :{facts.port}' shows who is there; or choose another --port",
        )
    elif facts.exposed:
        yield note("port", f"{where}: other machines can reach it", "They need an API key.")
    else:
        yield ok("port", f"{where}, {'in use by the daemon' if facts.ours else 'free'}")
    yield from _of_socket(facts)


def _of_socket(facts: Facts) -> Iterator[Finding]:
    if facts.socket is None:
        yield ok("socket", "none")
    elif facts.socket_mode is None:
        yield ok("socket", f"{facts.socket}, made when the daemon starts")
    elif facts.socket_mode & ~MODE:
        yield problem(
            "socket",
            f"{facts.socket} has mode {facts.socket_mode:04o}",
            "Whoever may write to it is taken for the owner of all sessions.",
            f"chmod 660 {facts.socket}",
        )
    elif not facts.ours:
        yield note("socket", f"{facts.socket} was left by a daemon that was killed; it is replaced")
    else:
        yield ok("socket", str(facts.socket))
