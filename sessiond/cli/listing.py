"""`sessiond list`: what can I go on with, and how fast."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.options import AsJson, Url
from sessiond.cli.output import Cell, Column, note, print_json, print_table
from sessiond.client import Client
from sessiond.errors import SessiondError
from sessiond.sessions.turn import SessionSummary

COLUMNS = (
    Column("NAME"),
    Column("AGENT", shrink="crop", least=6),
    Column("TITLE", shrink="crop", least=12),
    Column("LAST", right=True),
    Column("SIZE", right=True),
    Column("BACK IN", shrink="wrap", least=14),
)
SHOWN = 50
"""So many lines of a table fit a look; a terminal gets no more of them unasked."""
All = Annotated[bool, typer.Option("--all", "-a", help="Also in a terminal show all of them.")]
NOTHING = """\
No sessions yet. Point an OpenAI client at {daemon}/s/NAME/v1 to start one called NAME,
or make one here: sessiond new NAME, then sessiond resume NAME --chat"""
_BY_SOCKET = "the daemon's address, then "


def list_sessions(as_json: AsJson = False, all_of_them: All = False, url: Url = None) -> None:
    """Show all sessions: what there is to go on with, and how soon.

    SIZE counts tokens, the pieces of text a model reads (about four letters each). BACK IN is the
    time until the model can go on: "now" if the conversation is in its memory, a moment if it is on
    disk, longer if the model has to read the conversation again. A * is behind pinned sessions.
    """
    with _uncollected(), Client(url) as client:
        sessions = together(client.sessions())
        if as_json:
            print_json({"sessions": sessions})
        elif sessions:
            _show(sessions, None if all_of_them or not sys.stdout.isatty() else SHOWN)
            _tell_of_trouble(client)
        else:
            socket = client.endpoint.socket
            print(NOTHING.format(daemon=_BY_SOCKET if socket else client.endpoint.url))


def _show(sessions: Sequence[SessionSummary], most: int | None) -> None:
    now = time.time()
    print_table(COLUMNS, [_row(session, now) for session in sessions[:most]])
    if most is not None and len(sessions) > most:
        note(f"… and {len(sessions) - most:,} more: sessiond list --all")
    if unsaved := [session.name for session in sessions if not session.saved]:
        note(f"Not on disk yet, the ledger cannot be written: {', '.join(unsaved)}")


def _tell_of_trouble(client: Client) -> None:
    """What cannot be saved at present, and what to do about it."""
    with suppress(SessiondError):
        if detail := client.health().detail:
            note(detail)


@contextmanager
def _uncollected() -> Iterator[None]:
    """To look for garbage among very many rows takes as long as to make them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def together(sessions: Sequence[SessionSummary]) -> list[SessionSummary]:
    """Last used first; the sessions of a group stay together at the place of its latest one."""
    latest: dict[str, float] = {}
    for session in sessions:
        group = session.group or session.name
        latest[group] = max(latest.get(group, 0.0), session.last_used)
    return sorted(
        sessions,
        key=lambda s: (-latest[s.group or s.name], s.group or s.name, -s.last_used, s.name),
    )


def _row(session: SessionSummary, now: float) -> list[Cell]:
    soon = session.state == "resident"
    return [
        Cell(f"{session.name} *" if session.pinned else session.name, "bold"),
        Cell(session.agent or ""),
        Cell(session.title),
        Cell(words.ago(session.last_used, now)),
        Cell(f"{session.tokens:,}"),
        Cell(words.back_in(session), "green" if soon else "yellow" if session.reason else ""),
    ]
