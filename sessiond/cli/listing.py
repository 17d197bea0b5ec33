"""`sessiond list`: what can I go on with, and how fast."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from sessiond.cli import words
from sessiond.cli.options import AsJson, Url
from sessiond.cli.output import Cell, Column, note, print_json, print_table
from sessiond.client import Client
from sessiond.sessions.turn import SessionSummary

COLUMNS = (
    Column("NAME"),
    Column("AGENT", shrink="crop", least=6),
    Column("TITLE", shrink="crop", least=12),
    Column("LAST", right=True),
    Column("SIZE", right=True),
    Column("BACK IN", shrink="wrap", least=14),
)
NOTHING = """\
No sessions yet. Point an OpenAI client at {daemon}/s/NAME/v1 to start one called NAME,
or make one here: sessiond new NAME, then sessiond resume NAME --chat"""


def list_sessions(as_json: AsJson = False, url: Url = None) -> None:
    """Show all sessions: what there is to go on with, and how soon.

    SIZE counts tokens, the pieces of text a model reads (about four letters each). BACK IN is the
    time until the model can go on: "now" if the conversation is in its memory, a moment if it is on
    disk, longer if the model has to read the conversation again.
    """
    with Client(url) as client:
        sessions = together(client.sessions())
        daemon = "the daemon's address, then " if client.endpoint.socket else client.endpoint.url
    if as_json:
        print_json({"sessions": [asdict(session) for session in sessions]})
    elif sessions:
        now = time.time()
        print_table(COLUMNS, [_row(session, now) for session in sessions])
    else:
        print(NOTHING.format(daemon=daemon))
    unsaved = [session.name for session in sessions if not session.saved]
    if unsaved and not as_json:
        note(f"Not on disk yet, the ledger cannot be written: {', '.join(unsaved)}")


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
        Cell(session.name, "bold"),
        Cell(session.agent or ""),
        Cell(session.title),
        Cell(words.ago(session.last_used, now)),
        Cell(f"{session.tokens:,}"),
        Cell(words.back_in(session), "green" if soon else "yellow" if session.reason else ""),
    ]
