"""Commits turns of one session and says on stdout which are saved: to be traced or killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sessiond.sessions.journal import Journal
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import Turn
from tests.sessions.turns import make_turn


def line_of_turns(count: int) -> Iterator[Turn]:
    """A line of turns with a few kilobytes each."""
    for number in range(1, count + 1):
        yield make_turn(
            number, number - 1 or None, f"{number} " * 500, prompt=range(800), replied=range(100)
        )


def commit_all(path: Path, name: str, count: int) -> None:
    journal = Journal(Ledger(path))
    session = SessionRecord.new(name, 1.0)
    for turn in line_of_turns(count):
        saved = journal.commit(session, turn)
        _say(f"{'saved' if saved else 'waits'} {turn.number}")
    for _ in range(10):
        if not journal.retry():
            break
    _say(f"left {journal.waiting.count}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    commit_all(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
