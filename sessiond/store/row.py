"""One row of the index: a stored state, or the tombstone of one."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Index
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from sessiond.store.chain import Kind
from sessiond.store.envelope import Identity
from sessiond.store.found import State


class Base(SQLModel, registry=registry()):
    """Tables of the index only: the ledger has a database of its own."""


class Entry(Base, table=True):
    """`start`, `length`, `position` in tokens, `size` of the file in bytes, `last_used` a tick.

    `tokens` as in `Identity`."""

    __tablename__ = "entry"
    __table_args__ = (
        Index("entry_by_parent", "parent", "kind"),
        Index("entry_by_use", "state", "last_used", "kind", "size"),
    )

    key: str = Field(primary_key=True)
    parent: str
    kind: str
    state: str
    start: int
    length: int
    position: int
    size: int
    last_used: int
    fingerprint: str
    owner: str
    tokens: bytes


class Pin(Base, table=True):
    """A state that is not evicted, whether it is present or not."""

    __tablename__ = "pin"

    key: str = Field(primary_key=True)


@dataclass(frozen=True, slots=True)
class Record:
    """A row as the store sees it; `bytes` is the size of the file."""

    identity: Identity
    state: State
    bytes: int

    @property
    def key(self) -> str:
        return self.identity.key

    @property
    def kind(self) -> Kind:
        return self.identity.kind

    @property
    def present(self) -> bool:
        return self.state is State.PRESENT


def row_of(identity: Identity, size: int, tick: int) -> dict[str, object]:
    """Column values of a state that is present."""
    return {
        "key": identity.key,
        "parent": identity.parent,
        "kind": str(identity.kind),
        "state": str(State.PRESENT),
        "start": identity.start,
        "length": identity.position - identity.start,
        "position": identity.position,
        "size": size,
        "last_used": tick,
        "fingerprint": identity.fingerprint,
        "owner": identity.owner,
        "tokens": identity.tokens,
    }
