"""What a supervisor is told: systemd's sd_notify(3), one datagram of `KEY=value` lines a message.

The protocol is guaranteed to be stable; written after systemd's man/notify-selfcontained-example.py
(MIT-0), with the watchdog's variables as in sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

_EXTENSION_S = 30
_PATIENCE_S = 0.1


class Supervisor:
    """Of a daemon that nobody supervises: nothing is sent. No method raises. Any thread."""

    watchdog: float | None = None
    """So many seconds at most may lie between two pings; None where none are expected."""

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def ping(self) -> None:
        self._send("WATCHDOG=1")

    def extend(self) -> None:
        """What is under way goes on: starting or stopping may take 30 s from now, if need be."""
        self._send(f"EXTEND_TIMEOUT_USEC={_EXTENSION_S * 1_000_000}")

    def reloading(self) -> None:
        """`ready` must follow."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def _send(self, *lines: str) -> None: ...


class Systemd(Supervisor):
    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self.watchdog = watchdog
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def _send(self, *lines: str) -> None:
        message = "\n".join(" ".join(line.split()) for line in lines).encode(errors="replace")
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.settimeout(_PATIENCE_S)
            peer.sendto(message, self._address)


def supervisor(environment: Mapping[str, str] = os.environ) -> Supervisor:
    """That of $NOTIFY_SOCKET; pings are wanted from $WATCHDOG_PID alone, if there is one."""
    address, usec = environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", "")
    if not address.startswith(("/", "@")):
        return Supervisor()
    mine = environment.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
    return Systemd(address, int(usec) / 1e6 if mine and usec.isdecimal() and int(usec) else None)
