"""All turns of all sessions, in one SQLite file. After `commit` returns, a turn survives any crash.

Blocking: everything here is called from one worker thread.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, event, insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import StaticPool
from sqlmodel import Session, create_engine, select

from sessiond.errors import Conflict, LedgerError, SessionNotFound
from sessiond.sessions.backup import forget_older, forget_others, keep_copy
from sessiond.sessions.naming import called
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
from sessiond.store.damage import is_damage, is_stuck, worded
from sessiond.store.room import database_hint

BUSY_TIMEOUT_S = 5.0
SPARE_PAGES = 256
"""Empty pages that stay in the file at least, for turns to come."""
_LIGHT = 16384
"""Pages of a file that is copied in a moment: an older one is once, and can be shortened then."""
_SESSIONS = text("SELECT * FROM session")
_OUTLINES = text(
    "SELECT session_id, number, parent, length, prompt_tokens, cached, model, fingerprint, created,"
    " replaces FROM outline"
)
_OUTLINE = text(f"{_OUTLINES.text} WHERE session_id = :id")
_LAST_NUMBER = text("SELECT last FROM numbering WHERE session_id = :id")
_NUMBERED = text(
    "INSERT INTO numbering SELECT session_id, max(number) FROM turn WHERE session_id = :id"
    " GROUP BY session_id ON CONFLICT(session_id) DO UPDATE SET last = max(last, excluded.last)"
)
_REMOVE = text(
    "DELETE FROM turn WHERE session_id = :id AND number IN (SELECT value FROM json_each(:numbers))"
)
_FINGERPRINTS = text("SELECT DISTINCT fingerprint FROM outline")
_ANSWERED = text(
    "SELECT session.name, turn.number FROM turn JOIN session ON session.id = turn.session_id"
    " WHERE turn.response_id = :id"
)
_KNOWN = text(
    "SELECT response_id FROM turn WHERE response_id IN (SELECT value FROM json_each(:ids))"
)
_FORGET = text("UPDATE turn SET response_id = NULL, response = NULL WHERE response_id = :id")


class TurnRefused(LedgerError):
    """This turn can never be stored as it is: its number is taken or its parent is not there."""


class Ledger:
    """Methods raise LedgerError where SQLite or the system refuses; nothing has changed then."""

    def __init__(self, path: Path, *, busy_timeout: float = BUSY_TIMEOUT_S) -> None:
        """Opens or creates the file, readable by its owner only, and brings it up to date."""
        self._path, self._busy_timeout, self._stuck = path, busy_timeout, False
        with self._named_errors("opened"):
            self._connection = _open(path, busy_timeout)
        self._engine = create_engine(
            "sqlite://", creator=lambda: self._connection, poolclass=StaticPool
        )
        event.listen(self._engine, "begin", _begin)

    @property
    def directory(self) -> Path:
        """Where the file is."""
        return self._path.parent

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

    def outline_of(self, session_id: str) -> list[TurnOutline]:
        """The turns of one session, without what was said; none for an unknown one."""
        with self._transaction("read") as db:
            rows = db.connection().execute(_OUTLINE, {"id": session_id})
            return [TurnOutline(*fields) for _, *fields in rows]

    def fingerprints(self) -> set[str]:
        """Of all models and settings that any turn was made with."""
        with self._transaction("read") as db:
            return set(db.connection().execute(_FINGERPRINTS).scalars())

    def load(self, name: str) -> SessionTree:
        """Raises SessionNotFound; LedgerError where a turn is damaged."""
        tree = SessionTree()
        with self._transaction("read") as db:
            session = _row(db, name)
            query = select(TurnRow).where(TurnRow.session_id == session.id)
            for row in sorted(db.exec(query), key=lambda row: row.number):
                self._add(tree, row, name)
            last = db.connection().execute(_LAST_NUMBER, {"id": session.id}).scalar()
        tree.number_after(last or 0)
        return tree

    def create(self, session: SessionRecord, turns: Sequence[Turn] = ()) -> None:
        """With turns, parents first. Raises Conflict if the name is taken."""
        rows = [_turn_row(session, turn).model_dump() for turn in turns]
        with self._transaction("written") as db:
            if db.exec(select(SessionRow).where(SessionRow.name == session.name)).first():
                raise Conflict(f"There is a session {session.called!r} already.", param="name")
            db.add(session_row(session))
            db.flush()
            if rows:
                db.connection().execute(insert(TurnRow), rows)

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

    def update(self, session: SessionRecord, fields: Collection[str]) -> bool:
        """Write these fields of the record, by id. False if the session has no row yet."""
        changed = session_row(session)
        with self._transaction("written") as db:
            if (row := db.get(SessionRow, session.id)) is None:
                return False
            for name in fields:
                setattr(row, name, getattr(changed, name))
            return True

    def touch(self, name: str, now: float) -> None:
        """The session was used at `now`, Unix seconds. Raises SessionNotFound."""
        with self._transaction("written") as db:
            _row(db, name).last_used = now

    def delete(self, name: str) -> None:
        """The session and all its turns. Raises SessionNotFound."""
        with self._transaction("written") as db:
            db.delete(_row(db, name))

    def remove(self, session_id: str, numbers: Sequence[int]) -> int:
        """These turns go, and their numbers are not given again; how many there were.

        Raises TurnRefused where another turn stands on one of them.
        """
        with self._transaction("written") as db:
            connection, id_ = db.connection(), {"id": session_id}
            connection.execute(_NUMBERED, id_)
            return connection.execute(_REMOVE, {**id_, "numbers": json.dumps([*numbers])}).rowcount

    def reclaim(self, most: int) -> int:
        """Give up to `most` pages that hold nothing back to the disk; how many went.

        A quarter of the file stays for turns to come. A file of before version 5 cannot be
        shortened; a small one is written anew for it, a large one keeps its size and fills again.
        """
        with self._named_errors("shortened"):
            total, free = self._pragma("page_count"), self._pragma("freelist_count")
            spare = free - max(SPARE_PAGES, total // 4)
            if spare <= 0 or (not self._pragma("auto_vacuum") and total > _LIGHT):
                return 0
            if self._pragma("auto_vacuum"):
                # One step frees one page; only a script is stepped to its end.
                self._connection.executescript(f"PRAGMA incremental_vacuum({min(most, spare)})")
            else:
                self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            return total - self._pragma("page_count")

    def forget_copies(self, before: float) -> int:
        """Copies of before a change of the format that were made before then, Unix seconds."""
        return forget_older(self._path, before)

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

    def known_responses(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that a turn is known by."""
        if not ids:
            return set()
        with self._transaction("read") as db:
            wanted = {"ids": json.dumps([*ids])}
            return {str(row[0]) for row in db.connection().execute(_KNOWN, wanted)}

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

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _add(self, tree: SessionTree, row: TurnRow, name: str) -> None:
        try:
            tree.add(turn_of(row))
        except (ValueError, KeyError, TypeError) as cause:
            raise LedgerError(
                f"Turn {row.number} of session {called(name)!r} in {self._path} is damaged.",
                hint=_RESTORE,
            ) from cause

    @contextmanager
    def _transaction(self, done: str) -> Iterator[Session]:
        with self._named_errors(done):
            if self._stuck:
                self._connect_anew()
            with Session(self._engine) as db, db.begin():
                yield db

    def _connect_anew(self) -> None:
        self.close()
        self._connection, self._stuck = _open(self._path, self._busy_timeout), False

    @contextmanager
    def _named_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except IntegrityError as cause:
            raise TurnRefused(f"The ledger {self._path} refused a row: {cause.orig}.") from None
        except (SQLAlchemyError, sqlite3.Error, OSError) as cause:
            # The statement's parameters are what people wrote: only the driver's words go on.
            why = cause.orig if isinstance(cause, DBAPIError) else cause
            self._stuck = self._stuck or is_stuck(why)
            hint = _RESTORE if is_damage(why) else database_hint(why, self._path)
            raise LedgerError(
                f"The ledger {self._path} could not be {done}: {worded(why)}.", hint=hint
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            # A row or the schema says what none of ours says; what it says is not told.
            if done == "written":
                raise
            raise LedgerError(
                f"The ledger {self._path} is damaged ({type(cause).__name__}).", hint=_RESTORE
            ) from None


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
    if found < 0:
        raise LedgerError(f"The ledger {path} is damaged: version {found}.", hint=_RESTORE)
    if not found:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    copy = keep_copy(connection, path, found) if 0 < found < known else None
    migrate(connection)
    _sync_directory(path.parent)
    if copy is not None:
        forget_others(path, copy)


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
        raise SessionNotFound(f"There is no session {called(name)!r}.")
    return row


def _turn_row(session: SessionRecord, turn: Turn) -> TurnRow:
    try:
        return turn_row(session.id, turn)
    except (TypeError, ValueError, RecursionError) as cause:
        raise TurnRefused(
            f"Turn {turn.number} of session {session.called!r} cannot be written: {cause}."
        ) from cause
