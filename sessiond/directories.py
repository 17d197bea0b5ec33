"""Where sessiond keeps things on this machine, and the lock that lets one daemon keep them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sessiond.errors import ConfigError

SOCKET_NAME = "sessiond.sock"
SERVICE_UNIT = Path("/etc/systemd/system/sessiond.service")
SERVICE_SOCKET = Path("/run/sessiond") / SOCKET_NAME
"""Where the machine's own service listens (systemd/sessiond.service)."""
_PRIVATE = 0o700
_CACHE_TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# Saved model state of sessiond. It can be computed again: backups may skip this directory.
"""


@dataclass(frozen=True, slots=True)
class StateDirs:
    """`state` holds the ledger and the index, `cache` the recomputable blocks and snapshots."""

    state: Path
    cache: Path

    @classmethod
    def resolve(cls, state_dir: str = "", store_dir: str = "") -> StateDirs:
        """From `server.state_dir` and `store.dir`, "" where not set. Touches nothing."""
        import platformdirs

        if state_dir:
            state = Path(state_dir).expanduser()
            cache = state / "cache"
        else:
            state = _systemd("STATE_DIRECTORY") or platformdirs.user_state_path("sessiond")
            cache = _systemd("CACHE_DIRECTORY") or platformdirs.user_cache_path("sessiond")
        if store_dir:
            cache = Path(store_dir).expanduser()
        return cls(state.absolute(), cache.absolute())

    @classmethod
    def of_service(cls) -> Self:
        """Those of the machine's own service (systemd/sessiond.service)."""
        return cls(Path("/var/lib/sessiond"), Path("/var/cache/sessiond"))

    def make(self) -> None:
        """Create both, for this user only, and tag the cache. Raises ConfigError."""
        _make_private(self.state, "server.state_dir")
        _make_private(self.cache, "store.dir")
        tag = self.cache / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_CACHE_TAG)
            tag.chmod(0o600)

    @contextmanager
    def locked(self, wait: float = 5.0) -> Iterator[None]:
        """Hold the state directory, which must exist. Blocks the calling thread.

        Waits `wait` seconds for another daemon to end, then raises ConfigError.
        """
        import filelock

        pid_file = self.state / "daemon.pid"
        lock = filelock.FileLock(self.state / "daemon.lock", mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=wait)
        except filelock.Timeout as error:
            raise _in_use(self.state, _read(pid_file)) from error
        try:
            pid_file.write_text(f"{os.getpid()}\n")
            pid_file.chmod(0o600)
            yield
        finally:
            pid_file.unlink(missing_ok=True)
            lock.release()


def runtime_socket() -> Path | None:
    """The default unix socket. None where neither systemd nor the desktop gives a directory."""
    runtime = _systemd("RUNTIME_DIRECTORY") or _directory(os.environ.get("XDG_RUNTIME_DIR"))
    return runtime / SOCKET_NAME if runtime else None


def _systemd(variable: str) -> Path | None:
    """systemd separates several directories by colons; the first is ours."""
    return _directory(os.environ.get(variable, "").split(":")[0])


def _directory(path: str | None) -> Path | None:
    return Path(path) if path else None


def _make_private(directory: Path, key: str) -> None:
    try:
        directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if directory.stat().st_uid == os.geteuid():
            directory.chmod(_PRIVATE)
    except OSError as error:
        raise ConfigError(
            f"{key}: cannot use {directory}: {error.strerror}.",
            hint="Give a directory this user may write to, with --state-dir.",
            param=key,
        ) from error


def _read(pid_file: Path) -> str:
    try:
        return pid_file.read_text().strip()
    except FileNotFoundError:
        return ""


def _in_use(state: Path, pid: str) -> ConfigError:
    holder = f"Another sessiond (pid {pid})" if pid else "Another sessiond"
    return ConfigError(
        f"{holder} uses the state directory {state}.",
        hint="Stop it first, or give this one its own with --state-dir.",
        param="server.state_dir",
    )
