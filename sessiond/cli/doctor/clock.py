"""The clock: ages of sessions and the order of turns are told by it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sessiond.cli.doctor.finding import Finding, note, ok, problem, warning

YEARS = (2025, 2100)
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Facts:
    """`synchronised` None: nobody can tell."""

    now: datetime
    synchronised: bool | None = None


def observe() -> Facts:
    return Facts(datetime.now(UTC), synchronised())


def judge(facts: Facts) -> Iterator[Finding]:
    told = f"{facts.now:%Y-%m-%d %H:%M} UTC"
    first, last = YEARS
    if not first <= facts.now.year <= last:
        yield problem(
            "clock",
            told,
            "Sessions seem ages old or from the future; old ones may be forgotten.",
            "timedatectl set-ntp true",
        )
    elif facts.synchronised is False:
        yield warning(
            "clock",
            f"{told}, not synchronised",
            "Ages of sessions are wrong when it is set right.",
            "timedatectl set-ntp true",
        )
    elif facts.synchronised is None:
        yield note("clock", f"{told}; whether it is synchronised cannot be told")
    else:
        yield ok("clock", f"{told}, synchronised")


def synchronised() -> bool | None:
    program = shutil.which("timedatectl")
    if program is None:
        return None
    try:
        told = subprocess.run(  # noqa: S603
            [program, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(told.stdout.strip())
