"""Can the model's state be cut into blocks? The daemon finds out when it first loads a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sessiond.cli.doctor.finding import Finding, note, ok, warning
from sessiond.config.settings import Config
from sessiond.engine.probe import Verdict, probe
from sessiond.errors import ConfigError
from sessiond.sessions.turn import Health

Source = Literal["daemon", "last start", "self-test"]


@dataclass(frozen=True, slots=True)
class Facts:
    """`codec` is "" where nothing is known. `source` is who says so."""

    codec: str = ""
    detail: str = ""
    source: Source = "last start"
    snapshot_bytes: int = 0


def observe(config: Config, state: Path, health: Health | None, *, deep: bool) -> Facts:
    """`deep`: load the model for a self-test; only where no daemon runs."""
    if health is not None and health.codec:
        return Facts(health.codec, health.codec_detail, "daemon", _known(state).snapshot_bytes)
    if not deep:
        return _known(state)
    from sessiond.daemon.loading import context_settings

    try:
        verdict = probe(context_settings(config))
    except ConfigError as error:
        return Facts("", error.message, "self-test")
    return Facts(verdict.codec, verdict.detail, "self-test", verdict.snapshot_bytes)


def judge(facts: Facts) -> Iterator[Finding]:
    said = f"{facts.codec or 'not known'} ({facts.source})"
    if facts.codec == "blocks":
        yield ok("codec", f"state is saved in {said}")
    elif facts.codec:
        yield warning(
            "codec",
            f"{said}: {facts.detail}",
            "State is saved in one piece, at park and stop only: after a crash it is read again.",
            "a newer llama-cpp-python, or another model; please report the model",
        )
    else:
        yield note(
            "codec",
            f"{said}{': ' if facts.detail else ''}{facts.detail}",
            "The daemon tests it when it first loads the model.",
            "sessiond doctor --deep (without a running daemon)",
        )


def _known(state: Path) -> Facts:
    """The one verdict that the last start left."""
    try:
        (told,) = json.loads((state / "codec.json").read_text()).values()
        verdict = Verdict(**told)
    except (OSError, ValueError, TypeError, AttributeError):
        return Facts()
    return Facts(str(verdict.codec), str(verdict.detail), "last start", verdict.snapshot_bytes)
