"""What a benchmark found: where it ran, medians and spreads, goals; as JSON and as a page."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from scripts.fetch_models import ROOT
from sessiond import __version__
from sessiond.cli.output import Cell, Column, print_json, print_table

Json = dict[str, Any]
RESULTS = ROOT / "docs" / "benchmarks"
LIBRARIES = ("llama-cpp-python", "numpy", "uvicorn", "fastapi", "xxhash", "sqlalchemy")
_TICKS = "▁▂▃▄▅▆▇█"


class Spread(NamedTuple):
    """The median of so many `values`, the smallest and the largest."""

    median: float
    low: float
    high: float
    values: int

    def __str__(self) -> str:
        if self.values == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)}-{number(self.high)})"


@dataclass(frozen=True, slots=True)
class Goal:
    """`measured` should be at least, or at most, `wanted`."""

    name: str
    measured: float
    wanted: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        if self.at_least:
            return self.measured >= self.wanted
        return self.measured <= self.wanted

    @property
    def asked(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {number(self.wanted)}"


def spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    return Spread(statistics.median(found), found[0], found[-1], len(found))


def document(
    script: str, settings: Json, results: Json, goals: Sequence[Goal], before: Json
) -> Json:
    """The one document of a run. `before` is `environment()` as it was when the run began."""
    return {
        "script": script,
        "command": command(),
        "environment": before,
        "settings": settings,
        "results": results,
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
    }


def command() -> str:
    """How this process was started, for someone in the directory of the repository. No key of
    another server is told.
    """
    said = ["python", "-m", f"scripts.{Path(sys.argv[0]).stem}", *sys.argv[1:]]
    for at, word in enumerate(said):
        if word.startswith("--key="):
            said[at] = "--key=KEY"
        elif said[at - 1] == "--key":
            said[at] = "KEY"
    return shlex.join(said)


def environment() -> Json:
    """This machine, this commit and these libraries, and how busy the machine is."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "sessiond": __version__,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": psutil.cpu_count(logical=False),
        "threads": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_before": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The commit checked out, with `-dirty` if the tree differs from it; "" outside git."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--match="],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip() if told.returncode == 0 else ""


def save(found: Json, path: Path | None = None) -> Path:
    """Writes the document; by default where the repository keeps the results of its script."""
    path = path or RESULTS / f"{found['script']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return path


def show(title: str, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n")
    print_table(columns, [[Cell(worded(value)) for value in row] for row in rows])


def show_goals(goals: Sequence[Goal]) -> None:
    columns = (Column("GOAL"), Column("ASKED"), Column("MEASURED", right=True), Column(""))
    show(
        "Goals",
        columns,
        [(g.name, g.asked, g.measured, "met" if g.met else "MISSED") for g in goals],
    )


def show_environment(before: Json) -> None:
    print(
        f"\n{before['cpu']}, {before['cores']} cores, load {before['load_before']} before; "
        f"llama-cpp-python {before['libraries']['llama-cpp-python']}, "
        f"Python {before['python']}, commit {before['commit'][:12]}"
        f"{' (dirty)' if before['commit'].endswith('-dirty') else ''}"
    )


def finish(found: Json, *, as_json: bool, keep: bool, out: Path | None) -> None:
    """The last words of a run: the document on stdout, or the place where it was kept."""
    path = save(found, out) if keep or out else None
    if as_json:
        print_json(found)
    elif path:
        print(f"\nKept in {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def progress(text: str) -> None:
    """What is being done, on stderr."""
    print(text, file=sys.stderr, flush=True)


def worded(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Three digits that count, thousands separated."""
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def sparkline(values: Sequence[float]) -> str:
    """One tick for each value, from 0 up to the largest."""
    top = max(values, default=0.0) or 1.0
    return "".join(_TICKS[min(int(value / top * len(_TICKS)), len(_TICKS) - 1)] for value in values)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
