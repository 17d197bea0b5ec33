"""`sessiond verify`: is everything on disk sound?"""

from __future__ import annotations

from dataclasses import asdict

import typer

from sessiond.cli import words
from sessiond.cli.exits import FAILED
from sessiond.cli.options import AsJson, Url
from sessiond.cli.output import print_json
from sessiond.client import Client
from sessiond.sessions.turn import VerifyReport


def verify(as_json: AsJson = False, url: Url = None) -> None:
    """Read everything that is saved and check it. Exit code 0: all sound, 1: something is not.

    What is damaged is put aside and never used; the model reads that part of the conversation again
    when it is next needed. No text is lost.
    """
    with Client(url) as client:
        report = client.verify()
    if as_json:
        print_json({**asdict(report), "clean": report.clean})
    else:
        _print(report)
    if not report.clean:
        raise typer.Exit(FAILED)


def _print(report: VerifyReport) -> None:
    for key in report.damaged:
        print(f"damaged  {words.clean(key)}")
    for key in report.missing:
        print(f"missing  {words.clean(key)}")
    checked = (
        f"{words.counted(report.blocks, 'block')} and {words.counted(report.snapshots, 'snapshot')}"
        f" ({words.size(report.bytes)}), {words.counted(report.turns, 'turn')}"
    )
    if report.clean:
        print(f"All sound: {checked}")
    else:
        bad = f"{len(report.damaged)} damaged, {len(report.missing)} missing"
        print(f"{bad}, of {checked}. Put aside: the model reads these parts again from the ledger.")
    if report.unsaved_turns:
        print(f"{words.counted(report.unsaved_turns, 'turn')} not on disk yet: the ledger failed.")
