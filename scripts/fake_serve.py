"""`sessiond serve` with the fake engine: `python -m scripts.fake_serve [serve's own options]`.

Options, sockets, ledger, journal and files are real, the model is not: a turn takes milliseconds,
and what grows with the turns is sessiond's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.daemon import Daemon
from sessiond.cli.main import app
from sessiond.daemon import serving
from sessiond.daemon.loading import Loader
from sessiond.engine.context import Context, Model, ModelInfo
from sessiond.engine.core import SPARES
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Memory, MemoryKind
from sessiond.engine.probe import Verdict
from sessiond.engine.settings import ContextSettings

_MEMORY = Memory(MemoryKind.HYBRID)
_SNAPSHOT = 1 << 16
"""Bytes that a snapshot is said to have: the ring gets room for 32 of them."""


class FakeDaemon(Daemon):
    """As `Daemon`, with the fake engine."""

    def __init__(self, state: Path, options: Sequence[str] = ()) -> None:
        super().__init__(Path(__file__), state, options)

    def _command(self, config: Path) -> list[str]:
        command = super()._command(config)
        at = command.index("serve")
        return [command[0], "-m", "scripts.fake_serve", *command[at + 1 :]]


class FakeLoader(Loader):
    def _wanted(self) -> ContextSettings:
        config = self._config.model
        return ContextSettings(model=Path(config.path), n_ctx=config.n_ctx, n_seq_max=0)

    def _verdict(self, settings: ContextSettings) -> Verdict:
        return Verdict("blocks", "", 64, _SNAPSHOT, 0)

    def _open(self, wanted: ContextSettings, verdict: Verdict) -> tuple[Model, Context]:
        model = FakeModel(_MEMORY)
        lines = self._config.sessions.max_active
        return model, FakeContext(model, n_ctx=wanted.n_ctx, n_seq_max=lines + SPARES)

    def _marks(self, settings: ContextSettings, info: ModelInfo) -> Fingerprint:
        return Fingerprint("fake model", "fake library", "fake settings")


def main(arguments: Sequence[str]) -> int:
    serving.Loader = FakeLoader  # type: ignore[attr-defined]
    return app(["serve", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
