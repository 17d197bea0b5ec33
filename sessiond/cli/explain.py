"""`sessiond explain`: why the last requests were refused, or had to be read again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import Cell, Column, print_facts, print_json, print_table
from sessiond.client import Client
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.turn import TurnSummary

OUTCOMES = {
    "refused": "refused: nothing was sent to the model, nothing has changed",
    "forked": "let through, beside the old line",
    "compacted": "let through as a compaction",
    "rewound": "let through, since little was lost",
}
WANTED = frozenset({"refused", "forked"})
"""Outcomes a person may want to change."""
COLUMNS = (
    Column("TURN", right=True),
    Column("WHEN", right=True),
    Column("CAUSE"),
    Column("READ AGAIN", right=True),
    Column("WHY", shrink="wrap", least=14),
)
WAYS = (Column(""), Column("", shrink="wrap", least=20))
Last = Annotated[
    int, typer.Option("--last", min=1, help="How many rewrites and turns to show at most.")
]


def explain(name: Name, last: Last = 5, as_json: AsJson = False, url: Url = None) -> None:
    """Show why requests of a session were refused, or why known text was read again.

    A rewrite is a request that changes what the session already holds. The newest comes last. The
    daemon remembers rewrites, with a piece of the text before and after, until it is stopped.
    """
    with Client(url) as client:
        rewrites = client.explain(name)
        turns = [turn for turn in client.turns(name) if turn.miss is not None]
    if as_json:
        print_json({"rewrites": _dicts(rewrites[-last:]), "misses": _dicts(turns[-last:])})
        return
    _print(name, rewrites[-last:], _unexplained(turns, rewrites)[-last:])


def _dicts(told: Sequence[Explanation] | Sequence[TurnSummary]) -> list[dict[str, object]]:
    return [asdict(each) for each in told]


def _unexplained(
    missed: Sequence[TurnSummary], rewrites: Sequence[Explanation]
) -> list[TurnSummary]:
    explained = {rewrite.turn for rewrite in rewrites}
    return [turn for turn in missed if turn.turn not in explained]


def _print(name: str, rewrites: Sequence[Explanation], missed: Sequence[TurnSummary]) -> None:
    if not rewrites and not missed:
        print(
            f"Nothing to explain: no request rewrote {name} since the daemon started, "
            "and no turn read known text again."
        )
        return
    now = time.time()
    for number, rewrite in enumerate(rewrites):
        print("\n" if number else "", end="")
        print_facts(_facts(rewrite, now))
    if rewrites:
        _print_ways(rewrites[-1])
    if missed:
        print("\n" if rewrites else "", end="")
        print("Turns that read known text again:")
        print_table(COLUMNS, [_row(turn, now) for turn in missed])


def _facts(rewrite: Explanation, now: float) -> list[tuple[str, str]]:
    turn = "" if rewrite.turn is None else f", turn {rewrite.turn}"
    return [
        ("When", f"{words.ago(rewrite.created, now)}{turn}"),
        ("Outcome", OUTCOMES.get(rewrite.outcome, rewrite.outcome)),
        ("Cause", rewrite.cause),
        ("What", rewrite.sentence),
        ("Where", _where(rewrite)),
        ("Before", rewrite.before or "(empty)"),
        ("After", rewrite.after or "(empty)"),
        (
            "Tokens",
            f"{rewrite.session_tokens:,} in the session, {rewrite.reusable_tokens:,} of them"
            f" reusable, {rewrite.discarded_tokens:,} not",
        ),
        ("Estimate", f"~{words.seconds(rewrite.estimated_prefill_ms)} to read the rest again"),
    ]


def _where(rewrite: Explanation) -> str:
    first = rewrite.first_diff
    role = "" if first.field == "tools" else f" ({first.role})"
    return f"{rewrite.param}{role}, character {first.char:,}, token {first.token:,}"


def _print_ways(rewrite: Explanation) -> None:
    if rewrite.outcome not in WANTED or not rewrite.ways:
        return
    print("\nWhat you can do:")
    print_table(WAYS, [[Cell("-"), Cell(way)] for way in rewrite.ways])


def _row(turn: TurnSummary, now: float) -> list[Cell]:
    miss = turn.miss
    return [
        Cell(str(turn.turn)),
        Cell(words.ago(turn.created, now)),
        Cell(miss.cause if miss else ""),
        Cell(f"{miss.tokens:,}" if miss else "", "yellow"),
        Cell(miss.message if miss else ""),
    ]
