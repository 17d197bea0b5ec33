"""`make proof-durability`: nothing that was acknowledged is lost, and nothing damaged is used.

Runs every test with the marker `proof_durability` and keeps what they counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from scripts import results
from scripts.bench import AsJson, Out
from scripts.fetch_models import ROOT
from scripts.results import Json, environment, progress
from sessiond.cli.output import Column

MARKER = "proof_durability"
PLACE = "PROOF_COUNTS"
"""As in `tests/proof.py`."""
FIGURES = (
    ("KILLS", "kills"),
    ("ACKNOWLEDGED", "acknowledged"),
    ("LOST", "lost"),
    ("POINTS", "points"),
    ("FILES", "files"),
    ("ACCEPTED", "accepted"),
    ("CRASHES", "crashes"),
)


def prove(only: str, counts: Path) -> int:
    """The exit code of pytest, whose words go to stderr."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", MARKER]
    command += ["-k", only] if only else []
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, PLACE: str(counts)}, stdout=sys.stderr
    )
    return done.returncode


def read(counts: Path) -> dict[str, Json]:
    """What was counted, by proof."""
    lines = counts.read_text().splitlines() if counts.exists() else []
    found: dict[str, Json] = {}
    for told in map(json.loads, lines):
        found[told.pop("proof")] = told
    return found


def totals(found: dict[str, Json]) -> Json:
    names = ("kills", "acknowledged", "lost", "restarts", "files", "accepted", "crashes")
    return {name: sum(proof.get(name, 0) for proof in found.values()) for name in names}


def show(found: dict[str, Json]) -> None:
    columns = (Column("PROOF"), *(Column(title, right=True) for title, _ in FIGURES))
    rows: list[tuple[Any, ...]] = [
        (name, *(proof.get(figure, "") for _, figure in FIGURES)) for name, proof in found.items()
    ]
    results.show("What was proved", columns, rows)


def main(
    only: Annotated[
        str, typer.Option(help="Tests whose name has this; then nothing is kept.")
    ] = "",
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Run the long proofs of durability: about an hour. Exit code 1 if one of them fails."""
    before, began = environment(), time.monotonic()
    with TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        progress("The long proofs of durability.")
        code = prove(only, counts)
        found = read(counts)
    document = results.document(
        "durability",
        {"command": "make proof-durability"},
        {
            "seconds": round(time.monotonic() - began),
            "passed": code == 0,
            "totals": totals(found),
            "proofs": found,
        },
        [],
        before,
    )
    if not as_json:
        show(found)
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not only and code == 0, out=out)
    raise typer.Exit(1 if code else 0)


if __name__ == "__main__":
    typer.run(main)
