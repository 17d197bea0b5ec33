"""The sockets the daemon listens on; uvicorn would open a unix socket to everyone."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sessiond.errors import ConfigError

_BACKLOG = 2048
_MODE = 0o660


def listen_tcp(host: str, port: int) -> list[socket.socket]:
    """One listening socket per address of `host`, all on one port (0: any). Raises ConfigError."""
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listeners.append(_bound(family, (address[0], port, *address[2:])))
            port = listeners[0].getsockname()[1]
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {error.strerror}.",
            hint="Is another program there? Choose another with --port.",
            param="server.port",
        ) from error
    return listeners


def listen_unix(path: Path) -> socket.socket:
    """Replaces a socket that nobody listens on any more. Mode 0660. Raises ConfigError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener.bind(str(path))
        # Nobody can connect between bind and listen, so nobody can come in before the mode is set.
        path.chmod(_MODE)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {path}: {error.strerror or error}.",
            hint='Stop the other daemon, or choose another socket with --uds, or "off".',
            param="server.uds",
        ) from error
    listener.setblocking(False)
    return listener


def addresses(listeners: Sequence[socket.socket]) -> list[str]:
    """What a client is given: URLs, `unix://` and a path for a unix socket."""
    return [_address(listener) for listener in listeners]


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    # With the protocol unsaid, asyncio leaves TCP_NODELAY off and every token waits for Nagle.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        with suppress(ConnectionRefusedError, FileNotFoundError):
            probe.connect(str(path))
            return True
    return False


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix://{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"
