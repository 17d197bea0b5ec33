"""`sessiond import`: a session from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Annotated, cast

import typer

from sessiond.cli import amount, words
from sessiond.cli.export import FileTrouble
from sessiond.cli.options import AsJson, Url
from sessiond.cli.output import note, print_json
from sessiond.client import Client
from sessiond.sessions.transfer.report import ImportReport

PART = 1 << 20
File = Annotated[str, typer.Argument(metavar="FILE|-", help="The file; - is stdin.")]
NewName = Annotated[
    str | None, typer.Option("--name", metavar="NEW", help="Its name here, instead of the old one.")
]
NoState = Annotated[
    bool,
    typer.Option(
        "--no-state",
        help="Only the conversation; the model reads it again. For files of people you do not "
        "trust with what your model says.",
    ),
]


def import_session(
    file: File,
    name: NewName = None,
    no_state: NoState = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Make a session of a file that `sessiond export` wrote.

    The file is looked at as a whole before anything is taken of it.
    """
    if file == "-" and sys.stdin.isatty():
        raise typer.BadParameter("the file would come from the terminal: give a FILE, or a pipe")
    try:
        with _opened(file) as source:
            sent = amount.told(_parts(source), "Sent")
            with Client(url) as client:
                report = client.import_session(sent, name, state=not no_state)
    except OSError as error:
        raise FileTrouble(f"{file} cannot be read: {error.strerror or error}.") from error
    if as_json:
        print_json(report)
        return
    session = report.session
    turns = f"{words.counted(report.turns, 'turn')}, {words.counted(report.tokens, 'token')}"
    print(f"Imported {session.name} ({turns}), back in {words.back_in(session)}.")
    if remark := _remark(report):
        note(remark)


def _opened(file: str) -> AbstractContextManager[BufferedReader]:
    if file == "-":
        return nullcontext(cast(BufferedReader, sys.stdin.buffer))
    return Path(file).open("rb")


def _parts(source: BufferedReader) -> Iterable[bytes]:
    """The first one is there before the daemon is called: it does not wait long for it."""
    rest: Iterator[bytes] = iter(lambda: source.read1(PART), b"")
    return chain([next(rest, b"")], rest)


def _remark(report: ImportReport) -> str:
    if not report.state_skipped:
        return ""
    taken = report.state_taken
    of = f"{report.state_skipped} of {taken + report.state_skipped} state files were not taken"
    return f"{of} ({report.skipped_because}): their tokens are read again on use."
