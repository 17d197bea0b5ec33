"""All turns of all sessions, in one SQLite file. After `commit` returns, a turn survives any crash.

Blocking: everything here is called from one worker thread.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import StaticPool
from sqlmodel import Session, create_engine, select

from sessiond.errors import Conflict, LedgerError, SessionNotFound
from sessiond.sessions.outline import TurnOutline
from sessiond.sessions.schema import (
    MIGRATIONS,
    FrontRow,
    SessionRecord,
    SessionRow,
    TurnRow,
    migrate,
    session_record,
    session_row,
    turn_of,
    turn_row,
    version,
)
from sessiond.sessions.tree import SessionTree, Turn

BUSY_TIMEOUT_S = 5.0
_SESSIONS = text("SELECT * FROM session")
_OUTLINES = text(
    "SELECT session_id, number, parent, length, prompt_tokens, cached, model, fingerprint, created,"
    " replaces FROM outline"
)
_ANSWERED = text(
    "SELECT session.name, turn.number FROM turn JOIN session ON session.id = turn.session_id"
    " WHERE turn.response_id = :id"
)
_FORGET = text("UPDATE turn SET response_id = NULL, response = NULL WHERE response_id = :id")


class TurnRefused(LedgerError):
    """This turn can never be stored as it is: its number is taken or its parent is not there."""


class Ledger:
    """Methods raise LedgerError where SQLite or the system refuses; nothing has changed then."""

    def __init__(self, path: Path, *, busy_timeout: float = BUSY_TIMEOUT_S) -> None:
        """Opens or creates the file, readable by its owner only, and brings it up to date."""
        self._path = path
        with self._named_errors("opened"):
            self._connection = _open(path, busy_timeout)
        self._engine = create_engine(
            "sqlite://", creator=lambda: self._connection, poolclass=StaticPool
        )
        event.listen(self._engine, "begin", _begin)

    def sessions(self) -> list[SessionRecord]:
        """The one used last comes first."""
        with self._transaction("read") as db:
            rows = db.connection().execute(_SESSIONS)
            records = [session_record(dict(row)) for row in rows.mappings()]
        return sorted(records, key=lambda record: record.last_used, reverse=True)

    def outlines(self) -> dict[str, list[TurnOutline]]:
        """The turns of all sessions by session id, without what was said in them."""
        found: dict[str, list[TurnOutline]] = {}
        with self._transaction("read") as db:
            for session, *fields in db.connection().execute(_OUTLINES):
                found.setdefault(session, []).append(TurnOutline(*fields))
        return found

    def load(self, name: str) -> SessionTree:
        """Raises SessionNotFound; LedgerError where a turn is damaged."""
        tree = SessionTree()
        with self._transaction("read") as db:
            session = _row(db, name)
            query = select(TurnRow).where(TurnRow.session_id == session.id)
            for row in sorted(db.exec(query), key=lambda row: row.number):
                self._add(tree, row, name)
        return tree

    def create(self, session: SessionRecord, turns: Sequence[Turn] = ()) -> None:
        """With turns, a path from its root. Raises Conflict if the name is taken."""
        rows = [_turn_row(session, turn) for turn in turns]
        with self._transaction("written") as db:
            if db.exec(select(SessionRow).where(SessionRow.name == session.name)).first():
                raise Conflict(f"There is a session {session.name!r} already.", param="name")
            db.add(session_row(session))
            for row in rows:
                db.flush()
                db.add(row)

    def fronts(self, last: int) -> dict[str, tuple[str, ...]]:
        """The fronts that stay, by key; of more than `last` those made first are forgotten."""
        with self._transaction("read") as db:
            rows = db.exec(select(FrontRow)).all()
            kept = sorted(rows, key=lambda row: row.created)
            for row in kept[:-last]:
                db.delete(row)
            return {row.key: tuple(json.loads(row.texts)) for row in kept[-last:]}

    def forget_fronts(self, keys: Sequence[str]) -> None:
        with self._transaction("written") as db:
            for key in keys:
                if (row := db.get(FrontRow, key)) is not None:
                    db.delete(row)

    def keep_front(self, key: str, texts: Sequence[str]) -> None:
        """The one that is there already stays."""
        with self._transaction("written") as db:
            if db.get(FrontRow, key) is None:
                made = json.dumps(list(texts), ensure_ascii=False)
                db.add(FrontRow(key=key, texts=made, created=time.time()))

    def update(self, session: SessionRecord) -> bool:
        """Name, policy, title, pin and the rest, by id. False if the session has no row yet."""
        with self._transaction("written") as db:
            if db.get(SessionRow, session.id) is None:
                return False
            db.merge(session_row(session))
            return True

    def touch(self, name: str, now: float) -> None:
        """The session was used at `now`, Unix seconds. Raises SessionNotFound."""
        with self._transaction("written") as db:
            _row(db, name).last_used = now

    def delete(self, name: str) -> None:
        """The session and all its turns. Raises SessionNotFound."""
        with self._transaction("written") as db:
            db.delete(_row(db, name))

    def commit(self, session: SessionRecord, turn: Turn) -> None:
        """Durable when it returns: the turn, and the session's row where there is none yet.

        Of an existing session only `last_used`, the title and a permission to compact that is
        used up are written. Raises TurnRefused.
        """
        stored = _turn_row(session, turn)
        with self._transaction("written") as db:
            row = db.get(SessionRow, session.id) or session_row(session)
            row.last_used = max(row.last_used, session.last_used)
            row.title = session.title or row.title
            row.may_compact = row.may_compact and session.may_compact
            db.add(row)
            db.flush()
            db.add(stored)

    def answered(self, response: str) -> tuple[str, int] | None:
        """The session's name and the number of the turn that is known by this id."""
        with self._transaction("read") as db:
            row = db.connection().execute(_ANSWERED, {"id": response}).first()
        return None if row is None else (str(row[0]), int(row[1]))

    def forget_response(self, response: str) -> bool:
        """The turn stays, without its id; False if there is none."""
        with self._transaction("written") as db:
            return db.connection().execute(_FORGET, {"id": response}).rowcount > 0

    def check_integrity(self) -> int:
        """Reads everything; the number of turns. Raises LedgerError where anything is damaged."""
        with self._named_errors("checked"):
            problems = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check")]
            orphans = self._connection.execute("PRAGMA foreign_key_check").fetchall()
        if problems != ["ok"] or orphans:
            found = problems[0] if problems != ["ok"] else f"{len(orphans)} rows without a parent"
            raise LedgerError(f"The ledger {self._path} is damaged: {found}.", hint=_RESTORE)
        return sum(len(self.load(session.name)) for session in self.sessions())

    def close(self) -> None:
        self._engine.dispose()
        self._connection.close()

    def _add(self, tree: SessionTree, row: TurnRow, name: str) -> None:
        try:
            tree.add(turn_of(row))
        except (ValueError, KeyError, TypeError) as cause:
            raise LedgerError(
                f"Turn {row.number} of session {name!r} in {self._path} is damaged.", hint=_RESTORE
            ) from cause

    @contextmanager
    def _transaction(self, done: str) -> Iterator[Session]:
        with self._named_errors(done), Session(self._engine) as db, db.begin():
            yield db

    @contextmanager
    def _named_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except IntegrityError as cause:
            raise TurnRefused(f"The ledger {self._path} refused a row: {cause.orig}.") from None
        except (SQLAlchemyError, sqlite3.Error, OSError) as cause:
            # The statement's parameters are what people wrote: only the driver's words go on.
            why = cause.orig if isinstance(cause, DBAPIError) else cause
            raise LedgerError(f"The ledger {self._path} could not be {done}: {why}.") from None


_RESTORE = "Move the file away, or put a backup in its place."


def _open(path: Path, busy_timeout: float) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, *path.parent.glob(f"{path.name}-*")):
        file.chmod(0o600)
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    found, known = version(connection), len(MIGRATIONS)
    if found > known:
        raise LedgerError(
            f"The ledger {path} has version {found}; this sessiond knows versions up to {known}.",
            hint="A newer sessiond wrote it. Start the newer sessiond, or move the file away.",
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    # SQLite syncs the directory for its journals, not for the database file itself.
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _row(db: Session, name: str) -> SessionRow:
    row = db.exec(select(SessionRow).where(SessionRow.name == name)).first()
    if row is None:
        raise SessionNotFound(f"There is no session {name!r}.")
    return row


def _turn_row(session: SessionRecord, turn: Turn) -> TurnRow:
    try:
        return turn_row(session.id, turn)
    except (TypeError, ValueError, RecursionError) as cause:
        raise TurnRefused(
            f"Turn {turn.number} of session {session.name!r} cannot be written: {cause}."
        ) from cause
