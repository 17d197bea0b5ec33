"""The ledger keeps what it gets, refuses what it does not know, and says when it cannot write."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import Session, SQLModel

from sessiond.errors import Conflict, LedgerError, SessionNotFound
from sessiond.sessions import schema
from sessiond.sessions.ledger import Ledger, TurnRefused
from sessiond.sessions.schema import SessionRecord, turn_of, turn_row
from sessiond.sessions.transcript import Chat, Message, Text, ToolCall
from sessiond.sessions.tree import Turn
from tests.sessions.turns import STATS, assistant, make_turn, text_turn, user, values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger(path, busy_timeout=0)
    yield opened
    opened.close()


@pytest.fixture
def session() -> SessionRecord:
    return SessionRecord.new("billing", 100.0, named=True, agent="pi", title="Fix it")


def stored_rows(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
    connection.close()
    return count


CALL = ToolCall("1", "ls", '{"path":"/ä"}')
TURNS = [
    make_turn(
        1,
        None,
        Chat(
            (Message("system", "s"), user("ü\0")),
            ('{"type":"function"}',),
            (("enable_thinking", False), ("kwargs", {"a": [1]})),
        ),
    ),
    make_turn(2, 1, Chat((Message("assistant", "", tool_calls=(CALL,), reasoning="hm"),)), kept=2),
    make_turn(
        3, 1, finish_reason="cancelled", reply="", replied=(), stats=replace(STATS, miss=None)
    ),
    text_turn(5, None, "Once", " upon"),
]


def test_a_session_comes_back_as_it_was(path: Path, session: SessionRecord) -> None:
    first = Ledger(path)
    for turn in TURNS:
        first.commit(session, turn)
    first.close()
    second = Ledger(path)
    assert [values(turn) for turn in second.load("billing")] == [values(turn) for turn in TURNS]
    assert second.sessions() == [session]
    assert second.check_integrity() == len(TURNS)
    second.close()


any_text = st.text(max_size=20)
options = st.dictionaries(
    any_text, st.none() | st.booleans() | any_text | st.integers(), max_size=3
)
calls = st.builds(ToolCall, any_text, any_text, any_text)
maybe = st.none() | any_text
messages = st.builds(Message, any_text, any_text, maybe, st.tuples(calls), maybe, maybe)
contents = st.builds(Text, any_text) | st.builds(
    lambda said, tools, chosen: Chat(tuple(said), tuple(tools), tuple(chosen.items())),
    st.lists(messages, max_size=3),
    st.lists(any_text, max_size=2),
    options,
)
token_lists = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)


@given(contents, any_text, token_lists, token_lists)
def test_any_turn_survives_its_row(
    content: Chat | Text, reply: str, prompt: list[int], replied: list[int]
) -> None:
    turn = make_turn(3, 2, content, reply, prompt=prompt, replied=replied)
    assert values(turn_of(turn_row("id", turn))) == values(turn)


def test_sessions_are_created_changed_and_used(ledger: Ledger, session: SessionRecord) -> None:
    other = SessionRecord.new("other", 200.0)
    ledger.create(session)
    ledger.create(other)
    assert ledger.sessions() == [other, session]
    ledger.touch("billing", 300.0)
    assert ledger.sessions() == [session.used(300.0), other]
    changed = replace(session, name="bills", policy="fork", pinned=True)
    assert ledger.update(changed, ["name", "policy", "pinned"])
    assert ledger.sessions() == [changed.used(300.0), other]
    assert len(ledger.load("bills")) == 0


def test_a_change_writes_its_fields_and_no_others(ledger: Ledger, session: SessionRecord) -> None:
    ledger.create(session)
    ledger.commit(session.used(300.0), make_turn(1))
    assert ledger.update(replace(session, pinned=True, pinned_front=("date",)), ["pinned_front"])
    assert ledger.sessions() == [replace(session.used(300.0), pinned_front=("date",))]


def test_a_name_is_given_once(ledger: Ledger, session: SessionRecord) -> None:
    ledger.create(session)
    with pytest.raises(Conflict):
        ledger.create(SessionRecord.new("billing", 1.0))
    assert ledger.sessions() == [session]


def test_an_unknown_session_is_said_to_be_unknown(ledger: Ledger, session: SessionRecord) -> None:
    assert not ledger.update(session, ["policy"])
    for use in (ledger.load, ledger.delete, lambda name: ledger.touch(name, 1.0)):
        with pytest.raises(SessionNotFound):
            use("billing")


def test_a_deleted_session_takes_its_turns_along(
    ledger: Ledger, session: SessionRecord, path: Path
) -> None:
    other = SessionRecord.new("other", 1.0)
    ledger.commit(other, make_turn(1))
    for turn in TURNS:
        ledger.commit(session, turn)
    ledger.delete("billing")
    assert stored_rows(path, "turn") == 1
    assert ledger.sessions() == [other]


def test_a_commit_creates_the_session_and_changes_little_of_an_existing_one(
    ledger: Ledger, session: SessionRecord
) -> None:
    ledger.create(replace(session, title="", policy="fork"))
    ledger.commit(session.used(150.0), make_turn(1))
    ledger.commit(replace(session, title="Later"), make_turn(2, 1))
    ledger.commit(replace(session, title=""), make_turn(3, 2))
    expected = replace(session, title="Later", policy="fork", last_used=150.0)
    assert ledger.sessions() == [expected]


@pytest.mark.parametrize("refused", [make_turn(1, None, "secret"), make_turn(9, 8, "secret")])
def test_a_turn_that_can_never_be_stored_is_refused_whole(
    ledger: Ledger, session: SessionRecord, refused: Turn
) -> None:
    ledger.commit(session, make_turn(1))
    with pytest.raises(TurnRefused) as error:
        ledger.commit(session.used(900.0), refused)
    assert "secret" not in str(error.value)
    assert ledger.sessions() == [session]
    assert len(ledger.load("billing")) == 1


def test_what_is_no_json_is_refused(ledger: Ledger, session: SessionRecord) -> None:
    content = Chat((user("hi"),), template_options=(("x", object()),))
    with pytest.raises(TurnRefused, match="JSON"):
        ledger.commit(session, make_turn(1, None, content))
    assert ledger.sessions() == []


def test_a_locked_ledger_fails_and_recovers(
    ledger: Ledger, session: SessionRecord, path: Path
) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked") as error:
        ledger.commit(session, make_turn(1))
    assert not isinstance(error.value, TurnRefused)
    assert str(path) in str(error.value)
    holder.execute("ROLLBACK")
    holder.close()
    ledger.commit(session, make_turn(1))
    assert len(ledger.load("billing")) == 1


def test_files_are_for_their_owner_only(path: Path, session: SessionRecord) -> None:
    path.parent.mkdir()
    path.touch(mode=0o644)
    path.chmod(0o644)
    ledger = Ledger(path)
    ledger.commit(session, make_turn(1))
    found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert found == dict.fromkeys(
        ("ledger.sqlite", "ledger.sqlite-shm", "ledger.sqlite-wal"), 0o600
    )
    ledger.close()


def test_the_folder_it_makes_is_for_its_owner_only(ledger: Ledger, path: Path) -> None:
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_newer_ledger_is_refused_by_name_and_left_alone(path: Path, ledger: Ledger) -> None:
    ledger.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError) as error:
        Ledger(path)
    assert str(path) in error.value.message
    assert "99" in error.value.message
    assert "newer" in error.value.hint
    assert path.read_bytes() == before


def test_a_file_that_is_no_ledger_is_refused_by_name(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(LedgerError) as error:
        Ledger(path)
    assert str(path) in error.value.message


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match=r"file/ledger\.sqlite"):
        Ledger(tmp_path / "file" / "ledger.sqlite")


def test_the_tables_are_those_the_rows_describe(path: Path, ledger: Ledger) -> None:
    connection = sqlite3.connect(path)
    for name in ("session", "turn"):
        info = connection.execute(f"PRAGMA table_info({name})").fetchall()
        described = SQLModel.metadata.tables[name].columns
        assert [row[1] for row in info] == [column.name for column in described]
        assert [bool(row[3]) for row in info] == [not column.nullable for column in described]
    connection.close()


def test_an_older_ledger_is_brought_up_to_date(
    path: Path, session: SessionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Ledger(path)
    old.commit(session, make_turn(1))
    old.close()

    def add_note(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE turn ADD COLUMN note TEXT")

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, add_note])
    monkeypatch.setattr("sessiond.sessions.ledger.MIGRATIONS", schema.MIGRATIONS)
    for _ in range(2):
        new = Ledger(path)
        assert len(new.load("billing")) == 1
        new.close()


def test_turns_of_an_older_ledger_are_outlined(path: Path, session: SessionRecord) -> None:
    """Version 2 had no outlines; the figures of one turn are damaged. Result: outlines of all."""
    old = Ledger(path)
    for turn in (make_turn(1, prompt=range(9)), make_turn(2, 1, kept=10), make_turn(3, 1, kept=4)):
        old.commit(session, turn)
    old.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER turn_removed")
        connection.execute("DROP TABLE numbering")
        connection.execute("DROP INDEX turn_parent")
        connection.execute("DROP TRIGGER turn_outlined")
        connection.execute("DROP VIEW turn_outline")
        connection.execute("DROP TABLE outline")
        connection.execute("DROP INDEX turn_response")
        for column in ("response_id", "response", "opened", "replaces"):
            connection.execute(f"ALTER TABLE turn DROP COLUMN {column}")
        connection.execute("UPDATE turn SET stats = '{' WHERE number = 3")
        connection.execute("PRAGMA user_version = 2")
    ledger = Ledger(path)
    (found,) = ledger.outlines().values()
    assert [(o.number, o.parent, o.length) for o in found] == [(1, None, 10), (2, 1, 13), (3, 1, 7)]
    assert [(o.prompt_tokens, o.cached) for o in found] == [(12, 7), (12, 7), (0, 0)]
    ledger.delete(session.name)
    assert ledger.outlines() == {}
    ledger.close()


def test_a_migration_that_fails_changes_nothing(
    path: Path, session: SessionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Ledger(path)
    old.commit(session, make_turn(1))
    old.close()

    def breaks(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM turn")
        connection.execute("no SQL at all")

    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, breaks])
        patch.setattr("sessiond.sessions.ledger.MIGRATIONS", schema.MIGRATIONS)
        with pytest.raises(LedgerError, match="syntax error"):
            Ledger(path)
    again = Ledger(path)
    assert len(again.load("billing")) == 1
    again.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("content", "{"),
        ("content", "{}"),
        ("stats", "[]"),
        ("stats", '{"miss":{"why":1}}'),
        ("prompt_tokens", b"\0\0\0"),
        ("kept", 99),
    ],
)
def test_a_damaged_turn_is_named(
    path: Path, ledger: Ledger, session: SessionRecord, column: str, value: Any
) -> None:
    ledger.commit(session, make_turn(1, None, Chat((user("q"), assistant("a")))))
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE turn SET {column} = ?", (value,))  # noqa: S608
    connection.commit()
    connection.close()
    for read in (lambda: ledger.load("billing"), ledger.check_integrity):
        with pytest.raises(LedgerError, match="Turn 1 of session 'billing'"):
            read()


def test_a_damaged_file_is_found(path: Path, session: SessionRecord) -> None:
    ledger = Ledger(path)
    for number in range(1, 40):
        ledger.commit(session, make_turn(number, None, "word " * 300))
    ledger.close()
    content = bytearray(path.read_bytes())
    content[-20_000:-8_000] = bytes(12_000)
    path.write_bytes(content)
    damaged = Ledger(path)
    with pytest.raises(LedgerError) as error:
        damaged.check_integrity()
    assert str(path) in error.value.message
    damaged.close()


def test_many_turns_are_written_at_once(
    ledger: Ledger, session: SessionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every turn of every owner waits for it."""
    flushed: list[object] = []
    flush = Session.flush

    def counted(self: Session, *given: Any) -> None:
        flushed.append(self)
        flush(self, *given)

    monkeypatch.setattr(Session, "flush", counted)
    numbers = [3, 9, *range(10, 60)]
    parents = [None, *numbers[:-1]]
    turns = [make_turn(*one) for one in zip(numbers, parents, strict=True)]
    ledger.create(session, turns)
    assert len(flushed) < 5
    assert [turn.number for turn in ledger.load(session.name)] == numbers
