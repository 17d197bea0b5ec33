"""The command: looks, judges, prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.doctor.finding import Finding, Status, worst
from sessiond.cli.exits import FAILED
from sessiond.cli.options import AsJson, Url
from sessiond.cli.output import Cell, Column, print_json, print_table
from sessiond.cli.serve import ConfigFile

STYLES = {Status.OK: "green", Status.NOTE: "cyan", Status.WARNING: "yellow", Status.PROBLEM: "red"}
COLUMNS = (Column(""), Column(""), Column("", shrink="wrap", least=30))
Deep = Annotated[
    bool,
    typer.Option("--deep", help="Load the model for a self-test, if no daemon is running."),
]


def doctor(
    config: ConfigFile = None, deep: Deep = False, as_json: AsJson = False, url: Url = None
) -> None:
    """Check the settings, the model, this machine and the daemon. Exit code 1: there is a problem.

    Says of each whether it is well, what it means where it is not, and what mends it. Works with
    and without a running daemon, and does not disturb one. Up to 64 MiB are written and read in the
    cache directory to measure the disk.
    """
    from sessiond.cli.doctor import examination

    findings = list(examination.judge(examination.observe(config, url, deep=deep)))
    result = worst(findings)
    if as_json:
        print_json({"worst": result, "findings": [asdict(each) for each in findings]})
    else:
        _print(findings)
    if result is Status.PROBLEM:
        raise typer.Exit(FAILED)


def _print(findings: list[Finding]) -> None:
    rows: list[list[Cell]] = []
    for each in findings:
        rows.append([Cell(each.status, STYLES[each.status]), Cell(each.check), Cell(each.found)])
        if each.meaning:
            rows.append([Cell(""), Cell(""), Cell(each.meaning)])
        if each.mend:
            rows.append([Cell(""), Cell(""), Cell(f"Do: {each.mend}", "bold")])
    print_table(COLUMNS, rows)
    counts = Counter(each.status for each in findings)
    told = [words.counted(counts[s], s) for s in (Status.PROBLEM, Status.WARNING, Status.NOTE)]
    print(f"\n{', '.join(told)}.")
