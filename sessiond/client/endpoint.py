"""Where the daemon is."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from sessiond.client.http import httpx
from sessiond.directories import SERVICE_SOCKET, runtime_socket
from sessiond.errors import SessiondError

DEFAULT_URL = "http://127.0.0.1:8484"
CONNECT_TIMEOUT = 5.0
_SOCKET_SCHEME = "unix://"


class BadAddress(SessiondError):
    """What was given as the daemon's address is none."""

    code, status = "bad_address", 400


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the daemon is: a URL, or a unix socket (then `url` is only for the Host header)."""

    url: str
    socket: Path | None = None

    def __str__(self) -> str:
        return str(self.socket) if self.socket else self.url

    @property
    def is_local(self) -> bool:
        return self.socket is not None or httpx.URL(self.url).host in (
            "127.0.0.1",
            "::1",
            "localhost",
        )


def find_daemon(url: str | None = None) -> Endpoint:
    """`url`, else $SESSIOND_URL, else the runtime socket or that of the machine's service if it
    accepts, else the default.
    """
    given = url or os.environ.get("SESSIOND_URL")
    if given and given.startswith(_SOCKET_SCHEME):
        return Endpoint("http://localhost", Path(given.removeprefix(_SOCKET_SCHEME)))
    if given:
        return Endpoint(_checked(given).rstrip("/").removesuffix("/v1"))
    for path in (runtime_socket(), SERVICE_SOCKET):
        if path is not None and _accepts(path):
            return Endpoint("http://localhost", path)
    return Endpoint(DEFAULT_URL)


def _checked(url: str) -> str:
    try:
        if httpx.URL(url).scheme in ("http", "https"):
            return url
        problem = "does not start with http://, https:// or unix://"
    except httpx.InvalidURL as error:
        problem = f"is not valid: {error}"
    raise BadAddress(
        f'The address "{url}" {problem}.',
        hint=f"Give it like {DEFAULT_URL}, with --url or SESSIOND_URL.",
        param="--url",
    )


def _accepts(path: Path) -> bool:
    """A socket file outlives a killed daemon, so it must be tried."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(CONNECT_TIMEOUT)
            probe.connect(str(path))
        except OSError:
            return False
        return True
