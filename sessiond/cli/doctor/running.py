"""The daemon that runs, if one does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.cli import words
from sessiond.cli.doctor.finding import Finding, note, ok, problem, warning
from sessiond.client import Client, Unreachable
from sessiond.config.settings import Config
from sessiond.directories import SERVICE_SOCKET
from sessiond.errors import SessiondError
from sessiond.sessions.turn import Health

_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


@dataclass(frozen=True, slots=True)
class Facts:
    """`address` is where it was looked for; `error` says why what answers there is none of ours.
    `pid` is of a process that holds the state directory, None where there is none. `configured`:
    that is where the settings have it.
    """

    address: str
    health: Health | None = None
    error: str = ""
    pid: int | None = None
    configured: bool = True

    @property
    def is_running(self) -> bool:
        return self.health is not None or self.pid is not None


def observe(config: Config, state: Path, url: str | None) -> Facts:
    pid = _holder(state / "daemon.pid")
    own = [*_addresses(config), f"unix://{SERVICE_SOCKET}"]
    address = url or os.environ.get("SESSIOND_URL") or own[0]
    here = address in own
    try:
        with Client(address) as client:
            return Facts(str(client.endpoint), client.health(), "", pid, here)
    except Unreachable:
        return Facts(address, None, "", pid, here)
    except SessiondError as error:
        return Facts(address, None, error.message, pid, here)


def judge(facts: Facts) -> Iterator[Finding]:
    health = facts.health
    if facts.error:
        yield problem(
            "daemon", facts.error, "What answers there is not sessiond.", "Give its --url."
        )
    elif health is None and facts.pid is not None:
        yield warning(
            "daemon",
            f"process {facts.pid} holds the state directory and does not answer at {facts.address}",
            "It is starting, stopping, or listens elsewhere.",
            "sessiond doctor --url http://HOST:PORT",
        )
    elif health is None:
        yield note("daemon", f"none at {facts.address}", "", "sessiond serve")
    else:
        yield from _of_health(facts.address, health)


def _of_health(address: str, health: Health) -> Iterator[Finding]:
    state = f"{health.status} at {address}"
    if health.status == "failed":
        yield problem("daemon", f"{state}: {health.detail}", "It answers no turn.", "See its log.")
    elif health.status == "ok":
        turns = f"{health.running} running, {health.queued} waiting"
        yield ok("daemon", f"{state}, {words.counted(health.sessions, 'session')}, {turns}")
    else:
        yield note("daemon", state, health.detail)
    if health.unsaved_turns:
        yield problem(
            "ledger",
            f"{words.counted(health.unsaved_turns, 'turn')} only in memory: {health.detail}",
            "They are lost if the daemon ends before the ledger can be written.",
            "Make room on the disk of the state directory; they are written then.",
        )
    elif health.status == "ok" and health.detail:
        yield warning("daemon", health.detail, "The daemon says so of itself.")


def _addresses(config: Config) -> list[str]:
    """Where these settings have it: its socket where that is, and its port."""
    host = _ANYWHERE.get(config.server.host, config.server.host)
    port = f"http://{host}:{config.server.port}"
    socket = config.server.socket()
    return [f"unix://{socket}", port] if socket is not None and socket.is_socket() else [port]


def _holder(file: Path) -> int | None:
    try:
        pid = int(file.read_text())
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError, OverflowError):
        return None
    return pid
