"""What every test gets: directories of its own and none of the developer's settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["tests.models"]

# systemd hands these to a service; a test must not find them in the developer's shell.
SERVICE_VARIABLES = (
    "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
)


@pytest.fixture(autouse=True)
def private_dirs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Points HOME and XDG_* below a new directory with a short path (unix sockets allow 107 bytes).

    Returns that directory. Also removes SESSIOND_* and what systemd sets for a service.
    """
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(_directory(home / name.lower())))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(_directory(home / "run")))
    for name in list(os.environ):
        if name.startswith("SESSIOND_") or name in SERVICE_VARIABLES:
            monkeypatch.delenv(name)
    return home


def _directory(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def free_ports() -> Callable[[], int]:
    """A function that gives a TCP port on 127.0.0.1 that nobody listens on; a new one each time."""
    given: set[int] = set()

    def take() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in given:
                given.add(port)
                return port

    return take


@pytest.fixture
def free_port(free_ports: Callable[[], int]) -> int:
    return free_ports()
