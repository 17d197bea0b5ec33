"""The settings, and the keys they name: do they load?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.api.keys import Keys
from sessiond.cli.doctor.finding import Finding, ok, problem
from sessiond.config.settings import Config
from sessiond.config.sources import find_file, load_config
from sessiond.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Facts:
    """`file` None: there is none. `error` is "" where all is well; then `config` is what holds."""

    file: Path | None
    config: Config
    error: str = ""
    hint: str = ""


def observe(file: str | None) -> Facts:
    path = None
    try:
        path = find_file(file)
        config = load_config(file=file)
        if keys := config.auth.keys_path():
            Keys.read(keys)
        return Facts(path, config)
    except ConfigError as error:
        return Facts(path, Config(), error.message, error.hint)


def judge(facts: Facts) -> Iterator[Finding]:
    if facts.error:
        yield problem(
            "config", facts.error, "The daemon refuses to start.", facts.hint or "Correct it."
        )
    elif facts.file is None:
        yield ok("config", "no file, defaults and variables only (sessiond init writes one)")
    else:
        yield ok("config", str(facts.file))
