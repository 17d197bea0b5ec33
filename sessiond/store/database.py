"""The index's file: opened, or moved aside when it is damaged or newer, which costs a rebuild."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from sessiond.errors import StoreFailed
from sessiond.store.damage import is_damage
from sessiond.store.row import Base

SCHEMA = 1
"""Goes up with every change of the tables; an index with another number is rebuilt."""


def open_database(
    path: Path, *, believed: bool = False, doubted: bool = False
) -> tuple[Engine, bool]:
    """An engine with the index's tables, and whether they are empty for want of a usable file.

    A file that is `believed` to be sound is not read through, one that is `doubted` not used.
    Raises StoreFailed when the file cannot be opened."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _make_private(path)
        state = "damaged" if doubted else _state(path, believed=believed)
        if state not in ("good", "empty"):
            _move_aside(path, state)
            _make_private(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreFailed(f"The index {path} cannot be opened: {error}.") from error
    try:
        return _engine(path), state != "good"
    except (DBAPIError, UnicodeDecodeError) as error:
        if isinstance(error, DBAPIError) and not _is_at_fault(error.orig):
            raise StoreFailed(f"The index {path} cannot be opened: {error.orig}.") from error
    _move_aside(path, "damaged")
    _make_private(path)
    return _engine(path), True


def _make_private(path: Path) -> None:
    """There is a file, which its owner alone may read."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def _is_at_fault(error: BaseException | None) -> bool:
    """The file could be opened for writing: what SQLite takes for read-only is its header."""
    code = getattr(error, "sqlite_errorcode", 0)
    return is_damage(error) or code & 0xFF == sqlite3.SQLITE_READONLY


def _engine(path: Path) -> Engine:
    """Of a file that SQLite itself finds sound; its tables may still be none of ours."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"check_same_thread": False, "timeout": 10},
        pool_size=1,
        max_overflow=0,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    try:
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA}")
    except BaseException:
        engine.dispose()
        raise
    return engine


def _state(path: Path, *, believed: bool) -> str:
    """`good`, `empty`, or why the file cannot be used: `damaged`, `newer`, `older`."""
    try:
        with closing(sqlite3.connect(path, timeout=10)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            verdict = "ok" if believed else _verdict(connection)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return "damaged"
    except UnicodeDecodeError:  # of what SQLite says about a damaged schema
        return "damaged"
    if verdict != "ok":
        return "damaged"
    if version == SCHEMA:
        return "good"
    if version > SCHEMA:
        return "newer"
    return "older" if tables else "empty"


def _verdict(connection: sqlite3.Connection) -> str:
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    return str(verdict)


def _move_aside(path: Path, why: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{path}.{why}{suffix}")
