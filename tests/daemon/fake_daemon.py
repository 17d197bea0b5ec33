"""A whole daemon with a FakeEngine: `python -m tests.daemon.fake_daemon [--fake-…] [serve's own]`.

It is `sessiond serve` in everything but the model: options, sockets, signals, ledger and files are
real. SIGUSR1 makes the engine thread hang in its next evaluation, for ever. `FakeDaemon` is the
test's side of it.

    --fake-memory KIND   attention (default), swa, recurrent, hybrid, hybrid+swa
    --fake-latency MS    each evaluation (a micro-batch, or a step of all replies) takes so long
    --fake-load FILE     the model is loading as long as FILE exists
    --fake-broken        the model cannot be loaded
    --fake-hold FILE     no file of the state is written as long as FILE exists
    --fake-full FILE     the disk is full for files of the state as long as FILE exists
    --fake-unsaved       the ledger takes no turns
    --fake-tell S        the supervisor is told of changes so often, instead of every 5 s
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scripts.daemon import START_TIMEOUT_S, Daemon, DaemonFailed
from sessiond.cli.main import app
from sessiond.daemon import serving, watchdog
from sessiond.daemon.loading import Loader
from sessiond.engine.context import BatchRow, Context, Model, ModelInfo
from sessiond.engine.core import SPARES
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.probe import Verdict
from sessiond.engine.settings import ContextSettings
from sessiond.errors import EngineError, LedgerError
from sessiond.sessions.ledger import Ledger
from sessiond.store.files import Files
from tests.sessions.kinds import MEMORIES

_POLL_S = 0.005
_POOL = 1 << 16
_LINES = 4
_SNAPSHOT = 1 << 20
"""Bytes that a snapshot is said to have: the ring gets room for 32 of them."""


class FakeDaemon(Daemon):
    """As `scripts.daemon.Daemon`, with a FakeEngine; `options` are those of this module too."""

    def __init__(self, state: Path, options: Sequence[str] = (), *, waits: bool = True) -> None:
        """`waits`: a start returns when it can answer."""
        super().__init__(Path(__file__), state, options)
        self.config = state.with_name(state.name + ".toml")
        self._waits = waits

    def signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def wait_for_log(self, words: str) -> str:
        """Until `words` are in the log; the last line that has them."""
        until(lambda: words in self.told, words)
        return [line for line in self.told.splitlines() if words in line][-1]

    def wait_for_health(self, field: str, value: object) -> None:
        until(lambda: self.http.get("/health").json()[field] == value, f"{field} = {value}")

    def wait(self, seconds: float = 60.0) -> int:
        """Until it has ended by itself; its exit code."""
        code = self._running().wait(seconds)
        self._forget()
        return code

    @property
    def told(self) -> str:
        """Its whole log, of all starts."""
        return self.log.read_text(errors="replace")

    def _wait_until_ready(self, deadline: float) -> None:
        if self._waits:
            super()._wait_until_ready(deadline)

    def _command(self, config: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "tests.daemon.fake_daemon", "--config", str(config)),
            *("--state-dir", str(self.state), "--uds", "off"),
            *("--host", "127.0.0.1", "--port", str(self.port), *self._options),
        ]


def until(condition: Callable[[], bool], what: str) -> None:
    """Raises DaemonFailed naming `what` does not become true."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise DaemonFailed(f"It did not come about: {what}.")
        time.sleep(_POLL_S)


class Supervisor:
    """systemd's end of the socket that a daemon notifies."""

    def __init__(self, path: Path) -> None:
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.variables = {"NOTIFY_SOCKET": str(path)}

    def hear(self, beginning: str, times: int = 1) -> str:
        """Until it has come so often from now on; the last message that begins so."""
        while times:
            if self._next(START_TIMEOUT_S).startswith(beginning):
                times -= 1
        return self.messages[-1]

    def hears_within(self, beginning: str, seconds: float) -> bool:
        """Whether one comes in that time."""
        deadline = time.monotonic() + seconds
        with suppress(TimeoutError):
            while (left := deadline - time.monotonic()) > 0:
                if self._next(left).startswith(beginning):
                    return True
        return False

    def close(self) -> None:
        self._socket.close()

    def _next(self, seconds: float) -> str:
        self._socket.settimeout(seconds)
        self.messages.append(self._socket.recv(4096).decode())
        return self.messages[-1]


class SlowContext(FakeContext):
    """Takes its time, and hangs once it is told to."""

    def __init__(self, model: FakeModel, latency: float, hung: threading.Event, **options: Any):
        super().__init__(model, **options)
        self._latency, self._hung = latency, hung

    def decode_rows(self, rows: Sequence[BatchRow]) -> None:
        while self._hung.is_set():
            time.sleep(_POLL_S)
        time.sleep(self._latency)
        super().decode_rows(rows)


def loader_of(options: argparse.Namespace) -> type[Loader]:
    hung = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: hung.set())
    memory = MEMORIES[options.fake_memory]

    class FakeLoader(Loader):
        def _wanted(self) -> ContextSettings:
            return ContextSettings(
                model=self._dirs.state / "fake.gguf",
                n_ctx=self._config.model.n_ctx or _POOL,
                n_seq_max=0,
            )

        def _verdict(self, settings: ContextSettings) -> Verdict:
            return Verdict("blocks", "", 64, _SNAPSHOT if memory.needs_snapshot else 0, 0)

        def _open(self, wanted: ContextSettings, verdict: Verdict) -> tuple[Model, Context]:
            for share in range(1, 100):
                self._progress(share / 100)
            _wait_while(options.fake_load)
            if options.fake_broken:
                raise EngineError("This model is broken.")
            lines = self._config.sessions.max_active or _LINES
            model = FakeModel(memory)
            latency = options.fake_latency / 1e3
            size = {"n_ctx": wanted.n_ctx, "n_seq_max": lines + SPARES}
            return model, SlowContext(model, latency, hung, **size)

        def _marks(self, settings: ContextSettings, info: ModelInfo) -> Fingerprint:
            return Fingerprint("fake model", "fake library", "fake settings")

    return FakeLoader


def obstruct_ledger() -> None:
    def refused(ledger: Ledger, *arguments: Any) -> None:
        raise LedgerError("The ledger could not be written: database or disk is full.")

    Ledger.commit = refused  # type: ignore[method-assign]


def obstruct_disk(hold: Path | None, full: Path | None) -> None:
    write = Files.write

    def obstructed(files: Files, *arguments: Any) -> None:
        _wait_while(hold)
        if full and full.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(files, *arguments)

    Files.write = obstructed  # type: ignore[method-assign]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--fake-memory", choices=MEMORIES, default="attention")
    parser.add_argument("--fake-latency", type=float, default=0.0)
    parser.add_argument("--fake-tell", type=float, default=watchdog.TELL_S)
    parser.add_argument("--fake-broken", action="store_true")
    parser.add_argument("--fake-unsaved", action="store_true")
    for name in ("--fake-load", "--fake-hold", "--fake-full"):
        parser.add_argument(name, type=Path)
    options, rest = parser.parse_known_args(arguments)
    obstruct_disk(options.fake_hold, options.fake_full)
    watchdog.TELL_S = options.fake_tell
    if options.fake_unsaved:
        obstruct_ledger()
    serving.Loader = loader_of(options)  # type: ignore[misc]
    return app(["serve", "--model", __file__, *rest])  # any file will do


def _wait_while(file: Path | None) -> None:
    while file and file.exists():
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
