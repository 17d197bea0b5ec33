"""A turn that cannot be written waits, in order, and is written as soon as that is possible."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions.journal import Journal, Waiting
from sessiond.sessions.ledger import Ledger, TurnRefused
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import Turn
from tests.sessions.turns import make_turn

A, B = SessionRecord.new("a", 1.0), SessionRecord.new("b", 2.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite", busy_timeout=0)
    yield opened
    opened.close()


@pytest.fixture
def journal(ledger: Ledger) -> Journal:
    return Journal(ledger)


@pytest.fixture
def lock(tmp_path: Path, ledger: Ledger) -> Iterator[sqlite3.Connection]:
    """A connection whose open transaction keeps everybody else from writing."""
    holder = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield holder
    holder.close()


def numbers(ledger: Ledger, name: str) -> list[int]:
    return [turn.number for turn in ledger.load(name)]


def test_a_turn_is_saved_at_once_where_that_is_possible(journal: Journal, ledger: Ledger) -> None:
    assert journal.commit(A, make_turn(1))
    assert journal.waiting == Waiting()
    assert numbers(ledger, "a") == [1]


def test_turns_wait_and_are_written_parents_first(
    journal: Journal, ledger: Ledger, lock: sqlite3.Connection
) -> None:
    assert not journal.commit(A, make_turn(1))
    assert not journal.commit(A, make_turn(2, 1))
    assert not journal.commit(B, make_turn(1))
    assert journal.retry() == 3
    assert journal.waiting.turns == {A.id: 2, B.id: 1}
    assert "locked" in str(journal.waiting.error)
    lock.execute("ROLLBACK")
    assert journal.commit(B, make_turn(2, 1))
    assert journal.waiting == Waiting()
    assert (numbers(ledger, "a"), numbers(ledger, "b")) == ([1, 2], [1, 2])
    assert {one.name: one for one in ledger.sessions()} == {"a": A, "b": B}


def test_one_failure_is_enough_to_stop_trying(
    journal: Journal, ledger: Ledger, lock: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session in (A, B):
        journal.commit(session, make_turn(1))
    tried: list[str] = []
    commit = ledger.commit

    def counting(session: SessionRecord, turn: Turn) -> None:
        tried.append(session.name)
        commit(session, turn)

    monkeypatch.setattr(ledger, "commit", counting)
    assert journal.retry() == 2
    assert tried == ["a"]


def test_what_is_being_written_does_not_wait(
    journal: Journal, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads `waiting` in the middle of a write, of one turn and of two.

    Result: it is told what the operation before left.
    """
    commit, seen = ledger.commit, list[Waiting]()

    def looked_at(session: SessionRecord, turn: Turn) -> None:
        seen.append(journal.waiting)
        commit(session, turn)

    def refuse(*_arguments: object) -> None:
        raise LedgerError("The disk is full.")

    monkeypatch.setattr(ledger, "commit", looked_at)
    journal.commit(A, make_turn(1))
    monkeypatch.setattr(ledger, "commit", refuse)
    journal.commit(A, make_turn(2, 1))
    waiting = journal.waiting
    monkeypatch.setattr(ledger, "commit", looked_at)
    journal.commit(A, make_turn(3, 2))
    assert (waiting.count, str(waiting.error)) == (1, "The disk is full.")
    assert seen == [Waiting(), waiting, waiting]
    assert journal.waiting == Waiting()


def test_a_write_that_fails_unexpectedly_leaves_its_turn_waiting(
    journal: Journal, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "commit", broken)
        with pytest.raises(ZeroDivisionError):
            journal.commit(A, make_turn(1))
    assert journal.waiting.turns == {A.id: 1}
    assert journal.retry() == 0
    assert numbers(ledger, "a") == [1]


def test_a_turn_that_can_never_be_stored_holds_up_only_its_session(
    journal: Journal, ledger: Ledger
) -> None:
    journal.commit(A, make_turn(1))
    assert not journal.commit(A, make_turn(1, None, "again"))
    assert not journal.commit(A, make_turn(2, 1))
    assert journal.commit(B, make_turn(1))
    assert isinstance(journal.waiting.error, TurnRefused)
    assert journal.waiting.turns == {A.id: 2}
    assert numbers(ledger, "a") == [1]


def test_a_deleted_session_takes_its_waiting_turns_along(
    journal: Journal, ledger: Ledger, lock: sqlite3.Connection
) -> None:
    journal.commit(A, make_turn(1))
    journal.commit(B, make_turn(1))
    lock.execute("ROLLBACK")
    journal.delete(A)
    assert journal.waiting.count == 1
    assert journal.retry() == 0
    assert [one.name for one in ledger.sessions()] == ["b"]


def test_a_delete_that_fails_changes_nothing(
    journal: Journal, ledger: Ledger, tmp_path: Path
) -> None:
    journal.commit(A, make_turn(1))
    holder = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    journal.commit(A, make_turn(2, 1))
    with pytest.raises(LedgerError):
        journal.delete(A)
    assert journal.waiting.count == 1
    holder.close()
    assert journal.retry() == 0
    assert numbers(ledger, "a") == [1, 2]


def test_deleting_what_nobody_knows_is_an_error(journal: Journal) -> None:
    with pytest.raises(SessionNotFound):
        journal.delete(A)


def test_a_change_of_a_session_that_is_not_saved_yet_is_not_lost(
    journal: Journal, ledger: Ledger, lock: sqlite3.Connection
) -> None:
    journal.commit(A, make_turn(1))
    lock.execute("ROLLBACK")
    changed = replace(A, policy="fork")
    journal.update(changed, ["policy"])
    assert journal.retry() == 0
    assert ledger.sessions() == [changed]


def test_a_change_sets_nothing_else_of_a_session_that_waits(
    journal: Journal, ledger: Ledger, lock: sqlite3.Connection
) -> None:
    """The record that a change was made from is older than the turn that waits."""
    journal.commit(replace(A, title="Later", last_used=9.0), make_turn(1))
    lock.execute("ROLLBACK")
    journal.update(replace(A, policy="fork"), ["policy"])
    assert journal.retry() == 0
    assert ledger.sessions() == [replace(A, title="Later", last_used=9.0, policy="fork")]


def test_a_full_database_file_is_survived(journal: Journal, ledger: Ledger) -> None:
    journal.commit(A, make_turn(1))
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(2, 5):
        assert not journal.commit(A, make_turn(number, number - 1, "word " * 5000))
    assert "full" in str(journal.waiting.error)
    assert numbers(ledger, "a") == [1]
    ledger._connection.execute("PRAGMA max_page_count = 100000")
    assert journal.retry() == 0
    assert numbers(ledger, "a") == [1, 2, 3, 4]
    assert ledger.check_integrity() == 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"only root may mount a small disk: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_survived(small_disk: Path) -> None:
    ledger = Ledger(small_disk / "ledger.sqlite")
    journal = Journal(ledger)
    assert journal.commit(A, make_turn(1))
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        while space := shutil.disk_usage(small_disk).free:
            filler.write(bytes(space))
    saved = [journal.commit(A, make_turn(n, n - 1, "word " * 5000)) for n in range(2, 6)]
    assert saved == [False] * 4
    assert journal.waiting.count == 4
    (small_disk / "filler").unlink()
    assert journal.retry() == 0
    assert numbers(ledger, "a") == [1, 2, 3, 4, 5]
    assert ledger.check_integrity() == 5
    ledger.close()
