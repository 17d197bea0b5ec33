"""The ledger's tables and migrations, and what its rows are for everybody else."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, cast
from uuid import uuid4

import numpy as np
from sqlmodel import Field, SQLModel

from sessiond.engine.events import FinishReason
from sessiond.engine.memory import Tokens
from sessiond.sessions.naming import called, owner_of
from sessiond.sessions.transcript import Chat, Content, Message, Text, ToolCall, clean
from sessiond.sessions.tree import Turn, TurnStats
from sessiond.sessions.turn import Miss

STORED_TOKENS = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What is kept of a session beside its turns. Times are Unix seconds.

    `id` stays when the name changes. `name` is the full one, `owner/name` where the session belongs
    to an owner of API keys (no name has a slash otherwise). `named`: a person chose the name.
    `policy` None: the default, and so for `pinned_front`. `may_compact`: the next rewrite is let
    through, once.
    """

    id: str
    name: str
    named: bool
    agent: str | None
    title: str
    policy: str | None
    created: float
    last_used: float
    pinned: bool = False
    pinned_front: tuple[str, ...] | None = None
    may_compact: bool = False

    @property
    def owner(self) -> str:
        """Whose keys may use it and whose state it may share; "" is the house."""
        return owner_of(self.name)

    @property
    def called(self) -> str:
        """The name as its owner says it."""
        return called(self.name)

    @property
    def clock(self) -> datetime:
        """What templates see as now, in local time: the same for all turns, for the same tokens."""
        return datetime.fromtimestamp(self.created).astimezone()

    @classmethod
    def new(
        cls,
        name: str,
        now: float,
        *,
        named: bool = False,
        agent: str | None = None,
        title: str = "",
        policy: str | None = None,
        pinned_front: tuple[str, ...] | None = None,
    ) -> SessionRecord:
        return cls(
            uuid4().hex, name, named, agent, title, policy, now, now, pinned_front=pinned_front
        )

    def used(self, now: float) -> SessionRecord:
        return replace(self, last_used=now)


class SessionRow(SQLModel, table=True):
    """`pinned_front` is JSON."""

    __tablename__ = "session"

    id: str = Field(primary_key=True)
    name: str = Field(unique=True)
    named: bool
    agent: str | None
    title: str
    policy: str | None
    created: float
    last_used: float
    pinned: bool
    pinned_front: str | None
    may_compact: bool


class FrontRow(SQLModel, table=True):
    """A front that stays while parts of it change; `texts` is a JSON list."""

    __tablename__ = "front"

    key: str = Field(primary_key=True)
    texts: str
    created: float


class TurnRow(SQLModel, table=True):
    """Tokens are little-endian int32; `content`, `stats` and `response` are JSON."""

    __tablename__ = "turn"

    session_id: str = Field(primary_key=True, foreign_key="session.id")
    number: int = Field(primary_key=True)
    parent: int | None
    kind: str
    content: str
    kept: int
    prompt_tokens: bytes
    reply_tokens: bytes
    reply: str
    finish_reason: str
    tokenizer: str
    fingerprint: str
    model: str
    settings: str
    stats: str
    created: float
    response_id: str | None
    response: str | None
    opened: str
    replaces: int | None


def _first_tables(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE session (
            id TEXT PRIMARY KEY NOT NULL, name TEXT NOT NULL UNIQUE, named INTEGER NOT NULL,
            agent TEXT, title TEXT NOT NULL, policy TEXT,
            created REAL NOT NULL, last_used REAL NOT NULL, pinned INTEGER NOT NULL)"""
    )
    connection.execute(
        """CREATE TABLE turn (
            session_id TEXT NOT NULL REFERENCES session(id) ON DELETE CASCADE,
            number INTEGER NOT NULL, parent INTEGER, kind TEXT NOT NULL, content TEXT NOT NULL,
            kept INTEGER NOT NULL, prompt_tokens BLOB NOT NULL, reply_tokens BLOB NOT NULL,
            reply TEXT NOT NULL, finish_reason TEXT NOT NULL, tokenizer TEXT NOT NULL,
            fingerprint TEXT NOT NULL, model TEXT NOT NULL, settings TEXT NOT NULL,
            stats TEXT NOT NULL, created REAL NOT NULL,
            PRIMARY KEY (session_id, number),
            FOREIGN KEY (session_id, parent) REFERENCES turn(session_id, number))"""
    )


def _pinned_fronts(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE session ADD COLUMN pinned_front TEXT")
    connection.execute("ALTER TABLE session ADD COLUMN may_compact INTEGER NOT NULL DEFAULT 0")
    connection.execute(
        """CREATE TABLE front (
            key TEXT PRIMARY KEY NOT NULL, texts TEXT NOT NULL, created REAL NOT NULL)"""
    )


def _outlines(connection: sqlite3.Connection) -> None:
    """Listing must not read what was said: SQLite keeps the little it needs of each turn apart."""
    connection.execute(
        """CREATE TABLE outline (
            session_id TEXT NOT NULL REFERENCES session(id) ON DELETE CASCADE,
            number INTEGER NOT NULL, parent INTEGER, length INTEGER NOT NULL,
            prompt_tokens INTEGER NOT NULL, cached INTEGER NOT NULL,
            model TEXT NOT NULL, fingerprint TEXT NOT NULL, created REAL NOT NULL,
            PRIMARY KEY (session_id, number)) WITHOUT ROWID"""
    )
    connection.execute(
        """CREATE VIEW turn_outline AS SELECT session_id, number, parent,
            kept + length(prompt_tokens) / 4 + length(reply_tokens) / 4,
            CASE WHEN json_valid(stats)
                THEN coalesce(json_extract(stats, '$.prompt_tokens'), 0) ELSE 0 END,
            CASE WHEN json_valid(stats)
                THEN coalesce(json_extract(stats, '$.cached'), 0) ELSE 0 END,
            model, fingerprint, created FROM turn"""
    )
    connection.execute("INSERT INTO outline SELECT * FROM turn_outline")
    connection.execute(
        """CREATE TRIGGER turn_outlined AFTER INSERT ON turn BEGIN
            INSERT INTO outline SELECT * FROM turn_outline
            WHERE session_id = new.session_id AND number = new.number; END"""
    )


def _replies(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE turn ADD COLUMN response_id TEXT")
    connection.execute("ALTER TABLE turn ADD COLUMN response TEXT")
    connection.execute("ALTER TABLE turn ADD COLUMN opened TEXT NOT NULL DEFAULT ''")
    connection.execute(
        """CREATE UNIQUE INDEX turn_response ON turn(response_id)
            WHERE response_id IS NOT NULL"""
    )
    connection.execute("ALTER TABLE turn ADD COLUMN replaces INTEGER")
    connection.execute("ALTER TABLE outline ADD COLUMN replaces INTEGER")
    connection.execute("DROP VIEW turn_outline")
    connection.execute(
        """CREATE VIEW turn_outline AS SELECT session_id, number, parent,
            kept + length(prompt_tokens) / 4 + length(reply_tokens) / 4,
            CASE WHEN json_valid(stats)
                THEN coalesce(json_extract(stats, '$.prompt_tokens'), 0) ELSE 0 END,
            CASE WHEN json_valid(stats)
                THEN coalesce(json_extract(stats, '$.cached'), 0) ELSE 0 END,
            model, fingerprint, created, replaces FROM turn"""
    )


def _removals(connection: sqlite3.Connection) -> None:
    """Turns go one by one: their outlines with them, and their numbers are never given again."""
    connection.execute(
        """CREATE TABLE numbering (
            session_id TEXT PRIMARY KEY NOT NULL REFERENCES session(id) ON DELETE CASCADE,
            last INTEGER NOT NULL) WITHOUT ROWID"""
    )
    connection.execute("CREATE INDEX turn_parent ON turn(session_id, parent)")
    connection.execute(
        """CREATE TRIGGER turn_removed AFTER DELETE ON turn BEGIN
            DELETE FROM outline WHERE session_id = old.session_id AND number = old.number; END"""
    )


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [
    _first_tables,
    _pinned_fronts,
    _outlines,
    _replies,
    _removals,
]
"""Each brings a file from the version that is its index to the next. Released ones never change."""


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file up to date, each step in a transaction. `connection` is in autocommit mode."""
    for number in range(version(connection), len(MIGRATIONS)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[number](connection)
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def session_row(record: SessionRecord) -> SessionRow:
    pinned = None if record.pinned_front is None else _json(record.pinned_front)
    return SessionRow(**{**asdict(record), "pinned_front": pinned})


def session_record(row: Mapping[str, Any]) -> SessionRecord:
    """From the columns of `SessionRow`. Raises ValueError where the row is damaged."""
    front = row["pinned_front"]
    flags = {name: bool(row[name]) for name in ("named", "pinned", "may_compact")}
    pinned = None if front is None else tuple(json.loads(front))
    return SessionRecord(**{**row, **flags, "pinned_front": pinned})


def turn_row(session_id: str, turn: Turn) -> TurnRow:
    return TurnRow(
        session_id=session_id,
        number=turn.number,
        parent=turn.parent,
        kind="chat" if isinstance(turn.content, Chat) else "text",
        content=_json(asdict(turn.content)),
        kept=turn.kept,
        prompt_tokens=_blob(turn.prompt_tokens),
        reply_tokens=_blob(turn.reply_tokens),
        reply=clean(turn.reply),
        finish_reason=turn.finish_reason,
        tokenizer=turn.tokenizer,
        fingerprint=turn.fingerprint,
        model=turn.model,
        settings=turn.settings,
        stats=_json(asdict(turn.stats)),
        created=turn.created,
        response_id=turn.response_id,
        response=None if turn.response is None else clean(turn.response),
        opened=turn.opened,
        replaces=turn.replaces,
    )


def turn_of(row: TurnRow) -> Turn:
    """Raises ValueError, KeyError or TypeError where the row is damaged."""
    return Turn(
        number=row.number,
        parent=row.parent,
        content=_content(row.kind, json.loads(row.content)),
        kept=row.kept,
        prompt_tokens=_tokens(row.prompt_tokens),
        reply_tokens=_tokens(row.reply_tokens),
        reply=row.reply,
        finish_reason=cast(FinishReason, row.finish_reason),
        tokenizer=row.tokenizer,
        fingerprint=row.fingerprint,
        model=row.model,
        settings=row.settings,
        stats=_stats(json.loads(row.stats)),
        created=row.created,
        response_id=row.response_id,
        response=row.response,
        opened=row.opened,
        replaces=row.replaces,
    )


def _json(value: object) -> str:
    return clean(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


def _blob(tokens: Tokens) -> bytes:
    return tokens.astype(STORED_TOKENS).tobytes()


def _tokens(blob: bytes) -> Tokens:
    return np.frombuffer(blob, dtype=STORED_TOKENS).astype(np.int32, copy=False)


def _content(kind: str, data: dict[str, Any]) -> Content:
    if kind == "text":
        return Text(**data)
    messages = tuple(_message(**message) for message in data["messages"])
    options = tuple((name, value) for name, value in data["template_options"])
    return Chat(messages, tuple(data["tools"]), options)


def _message(tool_calls: list[dict[str, str]], **fields: Any) -> Message:
    return Message(tool_calls=tuple(ToolCall(**call) for call in tool_calls), **fields)


def _stats(data: dict[str, Any]) -> TurnStats:
    miss = data.pop("miss")
    return TurnStats(miss=Miss(**miss) if miss else None, **data)
