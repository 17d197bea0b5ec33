"""What is stored, in SQLite. A cache of the file headers: lost or damaged, it is rebuilt from them.

Not thread-safe: the store's lock is held by every caller. Every method raises StoreFailed when the
database fails, StoreFull when its disk is full.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlmodel import col

from sessiond.errors import StoreFailed, StoreFull
from sessiond.store import receipt
from sessiond.store.chain import Kind
from sessiond.store.damage import is_damage, is_stuck, worded
from sessiond.store.database import open_database
from sessiond.store.envelope import Identity
from sessiond.store.found import State, Totals
from sessiond.store.quota import Candidate
from sessiond.store.room import database_hint
from sessiond.store.row import Entry, Pin, Record, row_of
from sessiond.store.siblings import Families, Siblings
from sessiond.store.statements import (
    BY_KEY,
    COLUMNS,
    PREFIXES,
    PRESENT,
    all_candidates,
    chunks,
    record_of,
)

TOMBSTONES = 10_000
"""More are dropped, the oldest first, at the latest after `_SLACK` further ones."""

FEW = 16
"""Siblings whose rows are read at once: the answer is most often among the first."""

_SLACK = 500
_LATEST = 256
_LARGE = 256 << 20
"""Bytes of an index that is not read through after a crash: SQLite recovers by itself."""


class Index:
    def __init__(self, path: Path) -> None:
        """Opens or makes the index; `fresh` says that it is empty for want of a usable file.

        `totals_then` is what it had when it was closed, None where that is not sure.
        """
        self._path = path
        self._buried = _SLACK
        self._families = Families()
        doubtful = receipt.take_doubt(path)
        self.totals_then = None if doubtful else receipt.take(path)
        believed = self.totals_then is not None or _is_large(path)
        self._engine, self.fresh = open_database(path, believed=believed, doubted=doubtful)
        if believed and not self._answers():
            self._engine.dispose()
            self.totals_then = None
            doubtful = receipt.take_doubt(path)
            self._engine, self.fresh = open_database(path, doubted=doubtful)

    def _answers(self) -> bool:
        try:
            return bool(self.last_tick() >= 0 and self.after("", 1) is not None)
        except StoreFailed:
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
            row = connection.execute(BY_KEY, {"wanted": key}).one_or_none()
            return None if row is None else record_of(row)

    def records(self, keys: Collection[str]) -> dict[str, Record]:
        """Rows of any state, by key."""
        return {r.key: r for r in self._select(col(Entry.key), keys)}

    def siblings(self, parent: str) -> Siblings:
        """The blocks of any state after `parent`; some may have been forgotten since."""
        return self._families.of(parent, lambda: self._children(parent))

    def _children(self, parent: str) -> list[tuple[str, bytes]]:
        after = (col(Entry.parent) == parent) & (col(Entry.kind) == Kind.BLOCK)
        with self._reading() as connection:
            found = connection.execute(select(col(Entry.key), col(Entry.tokens)).where(after))
            return [(key, tokens) for key, tokens in found]

    def counts(self, parents: Collection[str], kinds: Collection[Kind]) -> dict[str, int]:
        """How many of any state there are after each of `parents`; only those with any."""
        found: dict[str, int] = {}
        with self._reading() as connection:
            for chunk in chunks(parents):
                after = col(Entry.parent).in_(chunk) & col(Entry.kind).in_(kinds)
                wanted = select(col(Entry.parent), func.count()).where(after)
                rows = connection.execute(wanted.group_by(col(Entry.parent)))
                found |= {parent: count for parent, count in rows}
        return found

    def snapshots(self, parents: Collection[str], limit: int) -> list[Record]:
        """Snapshots of any state after one of `parents`, at positions up to `limit`."""
        wanted = (col(Entry.kind) != Kind.BLOCK) & (col(Entry.position) <= limit)
        return list(self._select(col(Entry.parent), parents, wanted))

    def extends(self, parent: str, tokens: bytes) -> bool:
        """Whether a stored block after `parent` begins with `tokens`."""
        keys = self.siblings(parent).extending(tokens)
        while some := list(islice(keys, FEW)):
            if any(record.present for record in self.records(some).values()):
                return True
        return False

    def beginnings(self, parent: str, tokens: bytes) -> list[str]:
        """Keys of the partial blocks after `parent` that `tokens` begins with and goes beyond."""
        found = self.records(self.siblings(parent).beginning(tokens)).values()
        return [record.key for record in found if record.present]

    def after(self, key: str, limit: int) -> list[Record]:
        """Up to `limit` rows of any state with a greater key, in order: pages for reading all."""
        wanted = select(*COLUMNS).where(col(Entry.key) > key)
        with self._reading() as connection:
            rows = connection.execute(wanted.order_by(col(Entry.key)).limit(limit)).all()
            return [record_of(row) for row in rows]

    def prefixes(self) -> set[str]:
        """The first two digits of all keys, each once."""
        with self._reading() as connection:
            return set(connection.execute(PREFIXES).scalars())

    def sizes(self, kinds: Collection[Kind], prefix: str) -> dict[str, int]:
        """File sizes of what is present, by key, of keys that begin with two hexadecimal digits."""
        within = col(Entry.key).between(prefix, prefix + "g")
        wanted = select(col(Entry.key), col(Entry.size), col(Entry.kind), col(Entry.state))
        with self._reading() as connection:
            rows = connection.execute(wanted.where(within)).all()
        return {r.key: r.size for r in rows if r.kind in kinds and r.state == State.PRESENT}

    def oldest(self, limit: int, spared: str = "") -> list[Candidate]:
        """The `limit` least recently used present states, none of the fingerprint `spared`."""
        wanted = all_candidates().order_by(col(Entry.last_used), col(Entry.key)).limit(limit)
        if spared:
            wanted = wanted.where(col(Entry.fingerprint) != spared)
        with self._reading() as connection:
            return [Candidate(*row) for row in connection.execute(wanted)]

    def bytes_beside(self, fingerprint: str) -> int:
        """Of what is present of other fingerprints."""
        beside = PRESENT & (col(Entry.fingerprint) != fingerprint)
        with self._reading() as connection:
            return connection.execute(select(func.sum(col(Entry.size))).where(beside)).scalar() or 0

    def candidates(self, keys: Collection[str]) -> list[Candidate]:
        """Those of `keys` that are present."""
        found: list[Candidate] = []
        with self._reading() as connection:
            for chunk in chunks(keys):
                wanted = all_candidates().where(col(Entry.key).in_(chunk))
                found += [Candidate(*row) for row in connection.execute(wanted)]
        return found

    def totals(self) -> Totals:
        wanted = (
            select(col(Entry.kind), func.count(), func.sum(col(Entry.size)))
            .where(PRESENT)
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
            .where(PRESENT)
            .order_by(col(Entry.last_used).desc())
            .limit(_LATEST)
            .subquery()
        )
        such = (latest.c.fingerprint == fingerprint) & (latest.c.kind == kind)
        with self._reading() as connection:
            wanted = select(func.max(latest.c.size)).where(such)
            return connection.execute(wanted).scalar() or 0

    def foreign(self, known: Collection[str], tick: int, limit: int) -> list[str]:
        """Up to `limit` present states of other fingerprints than these, not used since `tick`;
        children first.
        """
        wanted = (
            select(col(Entry.key))
            .where(PRESENT, col(Entry.fingerprint).not_in(known), col(Entry.last_used) < tick)
            .order_by(col(Entry.start).desc(), col(Entry.position).desc())
        )
        with self._reading() as connection:
            return list(connection.execute(wanted.limit(limit)).scalars())

    def pins(self) -> set[str]:
        with self._reading() as connection:
            return set(connection.execute(select(col(Pin.key))).scalars())

    def pinned_bytes(self) -> int:
        """Of the pinned states that are present."""
        wanted = select(func.sum(col(Entry.size))).where(PRESENT, col(Entry.key) == col(Pin.key))
        with self._reading() as connection:
            return connection.execute(wanted).scalar() or 0

    def pin(self, more: Collection[str], fewer: Collection[str]) -> None:
        with self._writing() as connection:
            for chunk in chunks(fewer):
                connection.execute(delete(Pin).where(col(Pin.key).in_(chunk)))
            for chunk in chunks(more):
                rows = [{"key": key} for key in chunk]
                connection.execute(insert(Pin).prefix_with("OR IGNORE").values(rows))

    def tombstones(self) -> int:
        with self._reading() as connection:
            wanted = select(func.count()).select_from(Entry).where(~PRESENT)
            return int(connection.execute(wanted).scalar_one())

    def evicted(self) -> list[Record]:
        """Tombstones of what had to go for want of room."""
        with self._reading() as connection:
            rows = connection.execute(select(*COLUMNS).where(col(Entry.state) == State.EVICTED))
            return [record_of(row) for row in rows]

    def last_tick(self) -> int:
        with self._reading() as connection:
            wanted = select(func.max(col(Entry.last_used))).where(PRESENT)
            return connection.execute(wanted).scalar() or 0

    def add(self, identity: Identity, size: int, tick: int) -> None:
        """A present row, in place of any tombstone of the same key."""
        with self._writing() as connection:
            row = row_of(identity, size, tick)
            connection.execute(insert(Entry).prefix_with("OR REPLACE").values(row))
        if identity.kind is Kind.BLOCK:
            self._families.added(identity.parent, identity.key, identity.tokens)

    def remove(self, keys: Collection[str]) -> None:
        """Without a trace."""
        with self._writing() as connection:
            for chunk in chunks(keys):
                connection.execute(delete(Entry).where(col(Entry.key).in_(chunk)))
        self._families.removed(keys)

    def touch(self, keys: Collection[str], tick: int) -> None:
        with self._writing() as connection:
            for chunk in chunks(keys):
                wanted = update(Entry).where(col(Entry.key).in_(chunk), PRESENT)
                connection.execute(wanted.values(last_used=tick))

    def bury(self, keys: Collection[str], state: State, tick: int) -> None:
        """Makes tombstones of present rows; `tick` is the time of death."""
        with self._writing() as connection:
            for chunk in chunks(keys):
                wanted = update(Entry).where(col(Entry.key).in_(chunk), PRESENT)
                connection.execute(wanted.values(state=str(state), last_used=tick))
            self._buried += len(keys)
            if self._buried >= _SLACK:
                _drop_old_tombstones(connection)
                self._buried = 0

    def _select(
        self, column: Any, values: Collection[str], *where: ColumnElement[bool]
    ) -> Iterator[Record]:
        with self._reading() as connection:
            for chunk in chunks(values):
                wanted = select(*COLUMNS).where(column.in_(chunk), *where)
                yield from [record_of(row) for row in connection.execute(wanted)]

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
            if is_damage(error.orig):
                receipt.doubt(self._path)
            if is_stuck(error.orig):
                self._engine.dispose()
            kind = StoreFull if code == sqlite3.SQLITE_FULL else StoreFailed
            why = f"{worded(error.orig)}. {database_hint(error.orig, self._path)}".rstrip()
            raise kind(f"The store's index failed: {why}") from error
        except (ValueError, TypeError) as error:
            # A row says what none of ours says; SQLite has no checksum that would tell.
            receipt.doubt(self._path)
            raise StoreFailed(f"The store's index is damaged: {error}.") from error


def _is_large(path: Path) -> bool:
    try:
        return path.stat().st_size >= _LARGE
    except OSError:
        return False


def _drop_old_tombstones(connection: Connection) -> None:
    kept = (
        select(col(Entry.key))
        .where(~PRESENT)
        .order_by(col(Entry.last_used).desc())
        .limit(-1)
        .offset(TOMBSTONES)
    )
    connection.execute(delete(Entry).where(col(Entry.key).in_(kept)))
