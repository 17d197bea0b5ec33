"""What is stored, in SQLite. A cache of the file headers: lost or damaged, it is rebuilt from them.

Not thread-safe: the store's lock is held by every caller. Every method raises StoreFailed when the
database fails, StoreFull when its disk is full.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import aliased
from sqlmodel import col

from sessiond.errors import StoreFailed, StoreFull
from sessiond.store import receipt
from sessiond.store.chain import BLOCK_TOKENS, Kind
from sessiond.store.database import BROKEN, open_database
from sessiond.store.envelope import Identity
from sessiond.store.found import State, Totals
from sessiond.store.quota import Candidate
from sessiond.store.row import Entry, Record, row_of

TOMBSTONES = 10_000
"""More are dropped, the oldest first, at the latest after `_SLACK` further ones."""

_SLACK = 500
_CHUNK = 500
_LATEST = 256
_LARGE = 256 << 20
"""Bytes of an index that is not read through after a crash: SQLite recovers by itself."""
_PRESENT = col(Entry.state) == State.PRESENT
_RECORD = (
    col(Entry.kind),
    col(Entry.fingerprint),
    col(Entry.owner),
    col(Entry.key),
    col(Entry.parent),
    col(Entry.start),
    col(Entry.tokens),
    col(Entry.state),
    col(Entry.size),
)
_BY_KEY = select(*_RECORD).where(col(Entry.key) == bindparam("wanted"))
_PREFIXES = select(func.substr(col(Entry.key), 1, 2)).distinct()


class Index:
    def __init__(self, path: Path) -> None:
        """Opens or makes the index; `fresh` says that it is empty for want of a usable file.

        `totals_then` is what it had when it was closed, None where that is not sure.
        """
        self._path = path
        self._buried = _SLACK
        doubtful = receipt.take_doubt(path)
        self.totals_then = None if doubtful else receipt.take(path)
        believed = not doubtful and (self.totals_then is not None or _is_large(path))
        self._engine, self.fresh = open_database(path, believed=believed)
        if believed and not self._answers():
            self._engine.dispose()
            self.totals_then = None
            self._engine, self.fresh = open_database(path)

    def _answers(self) -> bool:
        try:
            return bool(self.last_tick() >= 0 and self.after("", 1) is not None)
        except StoreFailed:
            receipt.take_doubt(self._path)
            return False

    def close(self, totals: Totals | None = None) -> None:
        """`totals` of what is present, for the next start."""
        self._engine.dispose()
        if totals is not None:
            receipt.leave(self._path, totals)

    def checkpoint(self) -> None:
        """Moves what was committed into the main file, on disk."""
        with self._reading() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(FULL)")

    def get(self, key: str) -> Record | None:
        with self._reading() as connection:
            row = connection.execute(_BY_KEY, {"wanted": key}).one_or_none()
        return None if row is None else _record(row)

    def records(self, keys: Collection[str]) -> dict[str, Record]:
        """Rows of any state, by key."""
        return {r.key: r for r in self._select(col(Entry.key), keys)}

    def children(self, parent: str) -> list[tuple[str, bytes]]:
        """Keys and tokens of the blocks of any state after `parent`. They may be very many."""
        after = (col(Entry.parent) == parent) & (col(Entry.kind) == Kind.BLOCK)
        with self._reading() as connection:
            found = connection.execute(select(col(Entry.key), col(Entry.tokens)).where(after))
            return [(key, tokens) for key, tokens in found]

    def snapshots(self, parents: Collection[str], limit: int) -> list[Record]:
        """Snapshots of any state after one of `parents`, at positions up to `limit`."""
        wanted = (col(Entry.kind) != Kind.BLOCK) & (col(Entry.position) <= limit)
        return list(self._select(col(Entry.parent), parents, wanted))

    def extends(self, parent: str, tokens: bytes) -> bool:
        """Whether a stored block after `parent` begins with `tokens`."""
        start = func.substr(col(Entry.tokens), 1, len(tokens))
        return bool(self._siblings(parent, start == tokens, 1))

    def beginnings(self, parent: str, tokens: bytes) -> list[str]:
        """Keys of the partial blocks after `parent` that `tokens` begins with and goes beyond."""
        start = func.substr(literal(tokens), 1, func.length(col(Entry.tokens)))
        partial = col(Entry.length) < min(BLOCK_TOKENS, len(tokens) // 4)
        return self._siblings(parent, partial & (start == col(Entry.tokens)), None)

    def after(self, key: str, limit: int) -> list[Record]:
        """Up to `limit` rows of any state with a greater key, in order: pages for reading all."""
        wanted = select(*_RECORD).where(col(Entry.key) > key)
        with self._reading() as connection:
            rows = connection.execute(wanted.order_by(col(Entry.key)).limit(limit)).all()
        return [_record(row) for row in rows]

    def prefixes(self) -> set[str]:
        """The first two digits of all keys, each once."""
        with self._reading() as connection:
            return set(connection.execute(_PREFIXES).scalars())

    def sizes(self, kinds: Collection[Kind], prefix: str) -> dict[str, int]:
        """File sizes of what is present, by key, of keys that begin with two hexadecimal digits."""
        within = col(Entry.key).between(prefix, prefix + "g")
        wanted = select(col(Entry.key), col(Entry.size), col(Entry.kind), col(Entry.state))
        with self._reading() as connection:
            rows = connection.execute(wanted.where(within)).all()
        return {r.key: r.size for r in rows if r.kind in kinds and r.state == State.PRESENT}

    def oldest(self, limit: int) -> list[Candidate]:
        """The `limit` least recently used present states."""
        wanted = self._candidates().order_by(col(Entry.last_used), col(Entry.key)).limit(limit)
        with self._reading() as connection:
            return [Candidate(*row) for row in connection.execute(wanted)]

    def candidates(self, keys: Collection[str]) -> list[Candidate]:
        """Those of `keys` that are present."""
        found: list[Candidate] = []
        with self._reading() as connection:
            for chunk in _chunks(keys):
                wanted = self._candidates().where(col(Entry.key).in_(chunk))
                found += [Candidate(*row) for row in connection.execute(wanted)]
        return found

    def totals(self) -> Totals:
        wanted = (
            select(col(Entry.kind), func.count(), func.sum(col(Entry.size)))
            .where(_PRESENT)
            .group_by(col(Entry.kind))
        )
        with self._reading() as connection:
            rows = {kind: (count, size) for kind, count, size in connection.execute(wanted)}
        blocks = rows.pop(str(Kind.BLOCK), (0, 0))
        snapshots = sum(count for count, _ in rows.values())
        return Totals(blocks[1] + sum(size for _, size in rows.values()), blocks[0], snapshots)

    def largest(self, fingerprint: str, kind: Kind) -> int:
        """Bytes of the largest file among those used last, 0 where there is none."""
        latest = (
            select(col(Entry.size), col(Entry.kind), col(Entry.fingerprint))
            .where(_PRESENT)
            .order_by(col(Entry.last_used).desc())
            .limit(_LATEST)
            .subquery()
        )
        such = (latest.c.fingerprint == fingerprint) & (latest.c.kind == kind)
        with self._reading() as connection:
            wanted = select(func.max(latest.c.size)).where(such)
            return connection.execute(wanted).scalar() or 0

    def tombstones(self) -> int:
        with self._reading() as connection:
            wanted = select(func.count()).select_from(Entry).where(~_PRESENT)
            return int(connection.execute(wanted).scalar_one())

    def last_tick(self) -> int:
        with self._reading() as connection:
            wanted = select(func.max(col(Entry.last_used))).where(_PRESENT)
            return connection.execute(wanted).scalar() or 0

    def add(self, identity: Identity, size: int, tick: int) -> None:
        """A present row, in place of any tombstone of the same key."""
        with self._writing() as connection:
            row = row_of(identity, size, tick)
            connection.execute(insert(Entry).prefix_with("OR REPLACE").values(row))

    def remove(self, keys: Collection[str]) -> None:
        """Without a trace."""
        with self._writing() as connection:
            for chunk in _chunks(keys):
                connection.execute(delete(Entry).where(col(Entry.key).in_(chunk)))

    def touch(self, keys: Collection[str], tick: int) -> None:
        with self._writing() as connection:
            for chunk in _chunks(keys):
                wanted = update(Entry).where(col(Entry.key).in_(chunk), _PRESENT)
                connection.execute(wanted.values(last_used=tick))

    def bury(self, keys: Collection[str], state: State, tick: int) -> None:
        """Makes tombstones of present rows; `tick` is the time of death."""
        with self._writing() as connection:
            for chunk in _chunks(keys):
                wanted = update(Entry).where(col(Entry.key).in_(chunk), _PRESENT)
                connection.execute(wanted.values(state=str(state), last_used=tick))
            self._buried += len(keys)
            if self._buried >= _SLACK:
                _drop_old_tombstones(connection)
                self._buried = 0

    def _siblings(self, parent: str, wanted: ColumnElement[bool], limit: int | None) -> list[str]:
        after = (col(Entry.parent) == parent) & (col(Entry.kind) == Kind.BLOCK)
        found = select(col(Entry.key)).where(after, _PRESENT, wanted).limit(limit)
        with self._reading() as connection:
            return list(connection.execute(found).scalars())

    def _select(
        self, column: Any, values: Collection[str], *where: ColumnElement[bool]
    ) -> Iterator[Record]:
        with self._reading() as connection:
            for chunk in _chunks(values):
                wanted = select(*_RECORD).where(column.in_(chunk), *where)
                yield from [_record(row) for row in connection.execute(wanted)]

    @staticmethod
    def _candidates() -> Select[Any]:
        child = aliased(Entry)
        children = (
            select(func.count())
            .select_from(child)
            .where(col(child.parent) == col(Entry.key), col(child.state) == State.PRESENT)
            .scalar_subquery()
        )
        columns = (col(Entry.key), col(Entry.parent), col(Entry.size), col(Entry.last_used))
        return select(*columns, children).where(_PRESENT)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
            if code in BROKEN:
                receipt.doubt(self._path)
            kind = StoreFull if code == sqlite3.SQLITE_FULL else StoreFailed
            raise kind(f"The store's index failed: {error.orig}.") from error


def _is_large(path: Path) -> bool:
    try:
        return path.stat().st_size >= _LARGE
    except OSError:
        return False


def _drop_old_tombstones(connection: Connection) -> None:
    kept = (
        select(col(Entry.key))
        .where(~_PRESENT)
        .order_by(col(Entry.last_used).desc())
        .limit(-1)
        .offset(TOMBSTONES)
    )
    connection.execute(delete(Entry).where(col(Entry.key).in_(kept)))


def _chunks(keys: Collection[str]) -> Iterator[Sequence[str]]:
    listed = list(keys)
    for at in range(0, len(listed), _CHUNK):
        yield listed[at : at + _CHUNK]


def _record(row: Any) -> Record:
    kind, fingerprint, owner, key, parent, start, tokens, state, size = row
    identity = Identity(Kind(kind), fingerprint, owner, key, parent, start, tokens)
    return Record(identity, State(state), size)
