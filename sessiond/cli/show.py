"""`sessiond show`: one session and its last turns."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import Cell, Column, print_facts, print_json, print_table
from sessiond.client import Client
from sessiond.sessions.turn import SessionSummary, TurnSummary

COLUMNS = (
    Column("TURN", right=True),
    Column("LINE", shrink="crop", least=4),
    Column("WHEN", right=True),
    Column("SOURCE"),
    Column("CACHED", right=True),
    Column("READ", right=True),
    Column("TTFT", right=True),
    Column("REPLY", right=True),
    Column("NOTE", shrink="wrap", least=14),
)
PLACES = {"resident": "in the model's memory", "disk": "on disk", "ledger": "as text only"}
Last = Annotated[int, typer.Option("--turns", min=0, help="How many of the last turns to show.")]


def show(name: Name, last: Last = 10, as_json: AsJson = False, url: Url = None) -> None:
    """Show one session and its last turns.

    A turn is one request and its reply. CACHED tokens were known to the model already, READ ones
    had to be evaluated; TTFT is the time to the first token of the reply. SOURCE is where the known
    part came from: resident (memory), disk, ledger (text only: all read again), fork (another line)
    or new. NOTE says why known text had to be read again, and how a reply ended before its end.
    """
    with Client(url) as client:
        session = client.session(name)
        turns = client.turns(name)[-last:] if last else []
    if as_json:
        print_json({"session": asdict(session), "turns": [asdict(turn) for turn in turns]})
        return
    now = time.time()
    print_facts(_facts(session, now))
    if turns:
        print()
        print_table(COLUMNS, [_row(turn, now) for turn in turns])


def _facts(session: SessionSummary, now: float) -> list[tuple[str, str]]:
    saved = "" if session.saved else ", not saved yet: the ledger cannot be written"
    saved += ", pinned" if session.pinned else ""
    allowed = ", the next rewrite is let through" if session.may_compact else ""
    return [
        ("Session", session.name),
        ("Title", session.title),
        ("Agent", session.agent or ""),
        ("Group", session.group or ""),
        ("Back in", words.back_in(session)),
        ("Kept", f"{PLACES[session.state]}, {words.size(session.bytes)} stored{saved}"),
        ("Size", f"{words.counted(session.tokens, 'token')} in the main line"),
        ("Turns", f"{session.turns:,} in {words.counted(session.lines, 'line')}"),
        ("Reused", f"{session.hit_rate:.0%} of all prompt tokens"),
        ("Policy", f"{session.policy}{allowed}"),
        ("Pinned front", ", ".join(session.pinned_front)),
        ("Used", f"{words.ago(session.last_used, now)}, made {words.ago(session.created, now)}"),
    ]


def _row(turn: TurnSummary, now: float) -> list[Cell]:
    return [
        Cell(str(turn.turn)),
        Cell(turn.line, "" if turn.line == "main" else "dim"),
        Cell(words.ago(turn.created, now)),
        Cell(turn.source),
        Cell(f"{turn.cached_tokens:,}"),
        Cell(f"{turn.prefilled_tokens:,}"),
        Cell(words.duration(turn.ttft_ms)),
        Cell(f"{turn.completion_tokens:,}"),
        Cell(_note(turn), "yellow"),
    ]


def _note(turn: TurnSummary) -> str:
    endings = {"stop": "", "length": "ended by max_tokens or the room", "cancelled": "cancelled"}
    end = endings.get(turn.finish_reason, turn.finish_reason)
    return "; ".join(filter(None, (words.missed(turn.miss), end)))
