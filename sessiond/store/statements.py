"""What the index asks SQLite, and what its answers are for everybody else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import aliased
from sqlmodel import col

from sessiond.store.chain import Kind
from sessiond.store.envelope import Identity
from sessiond.store.found import State
from sessiond.store.row import Entry, Record

_CHUNK = 500
PRESENT = col(Entry.state) == State.PRESENT
COLUMNS = (
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
BY_KEY = select(*COLUMNS).where(col(Entry.key) == bindparam("wanted"))
PREFIXES = select(func.substr(col(Entry.key), 1, 2)).distinct()


def all_candidates() -> Select[Any]:
    child = aliased(Entry)
    children = (
        select(func.count())
        .select_from(child)
        .where(col(child.parent) == col(Entry.key), col(child.state) == State.PRESENT)
        .scalar_subquery()
    )
    columns = (col(Entry.key), col(Entry.parent), col(Entry.size), col(Entry.last_used))
    return select(*columns, children).where(PRESENT)


def chunks(keys: Collection[str]) -> Iterator[Sequence[str]]:
    listed = list(keys)
    for at in range(0, len(listed), _CHUNK):
        yield listed[at : at + _CHUNK]


def record_of(row: Any) -> Record:
    kind, fingerprint, owner, key, parent, start, tokens, state, size = row
    identity = Identity(Kind(kind), fingerprint, owner, key, parent, start, tokens)
    return Record(identity, State(state), size)
