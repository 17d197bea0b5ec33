"""A synthetic past: many sessions in a ledger, and many blocks in an index, written as rows.

All sessions begin with the same front, as those of one agent do. Their state has no bytes: only the
sessions used last have files, empty ones, so that a look at them finds what the index says.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np

from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Tokens
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.schema import SessionRecord, session_row, turn_row
from sessiond.sessions.transcript import Chat, Message
from sessiond.sessions.tree import Turn, TurnStats
from sessiond.store.chain import BLOCK_TOKENS, Kind, chain_keys, root_key, token_bytes
from sessiond.store.envelope import Identity
from sessiond.store.files import BLOCKS
from sessiond.store.index import Index
from sessiond.store.row import row_of

FINGERPRINT = Fingerprint("model", "library", "settings")
LEDGER, INDEX, CACHE = "ledger.sqlite", "index.sqlite", "cache"
FRONT_TOKENS = 4_000
"""Not a whole number of blocks: the block in which a front ends has a sibling for each session."""
TURNS = 4
REPLY_TOKENS = 200
BLOCK_BYTES = 1 << 20
WITH_FILES = 128
_BATCH = 500
_VOCABULARY = 50_000
_BEGAN = 1.7e9
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Size:
    """`blocks` in equal shares for the `sessions`; those of the front come on top."""

    sessions: int
    blocks: int

    @property
    def tokens(self) -> int:
        """Of each session: the front, and whole blocks of its own."""
        shared = FRONT_TOKENS // BLOCK_TOKENS
        return (shared + max(self.blocks // self.sessions, 2)) * BLOCK_TOKENS


def line_of(size: Size, session: int) -> Tokens:
    """All tokens of a session."""
    return np.concatenate((_drawn(0, FRONT_TOKENS), _drawn(session + 1, size.tokens)))[
        : size.tokens
    ]


def fill(folder: Path, size: Size) -> None:
    """Writes the ledger and the index as a daemon with such a past would have left them."""
    Ledger(folder / LEDGER).close()
    Index(folder / INDEX).close()
    with (
        closing(sqlite3.connect(folder / LEDGER)) as ledger,
        closing(sqlite3.connect(folder / INDEX)) as index,
    ):
        for connection in (ledger, index):
            connection.execute("PRAGMA synchronous = OFF")
        for session in range(size.sessions):
            line, record = line_of(size, session), record_of(session)
            _insert(ledger, "session", [session_row(record).model_dump()])
            _insert(ledger, "turn", [turn_row(record.id, t).model_dump() for t in _turns(line)])
            keys = chain_keys(root_key(FINGERPRINT.value, ""), line)
            _insert(index, "entry", _blocks(line, keys, session))
            if session >= size.sessions - WITH_FILES:
                _make_files(folder / CACHE / BLOCKS, keys[1:])
            if session % _BATCH == _BATCH - 1:
                ledger.commit()
                index.commit()
        ledger.commit()
        index.commit()


def record_of(session: int) -> SessionRecord:
    name = f"agent:{UUID(int=session)}"
    used = _BEGAN + session
    return SessionRecord(
        UUID(int=session).hex, name, False, "opencode", f"Task {session}", None, used, used
    )


def _drawn(seed: int, count: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, _VOCABULARY, count, dtype=np.int32)


def _turns(line: Tokens) -> list[Turn]:
    """One line of turns that ends with the line's last token."""
    ends = np.linspace(0, len(line), TURNS + 1, dtype=int)
    turns: list[Turn] = []
    for number in range(1, TURNS + 1):
        start, stop = int(ends[number - 1]), int(ends[number])
        prompt = stop - REPLY_TOKENS
        asked = Chat((Message("user", "What is next?"),))
        stats = TurnStats(prompt, start, 0, prompt - start, "resident", None, 1.0, 1.0)
        turns.append(
            Turn(
                number=number,
                parent=number - 1 or None,
                content=asked,
                kept=start,
                prompt_tokens=line[start:prompt],
                reply_tokens=line[prompt:stop],
                reply="This is.",
                finish_reason="stop",
                tokenizer="tokenizer",
                fingerprint=FINGERPRINT.value,
                model=FINGERPRINT.model,
                settings=FINGERPRINT.settings,
                stats=stats,
                created=_BEGAN + number,
            )
        )
    return turns


def _blocks(line: Tokens, keys: list[str], tick: int) -> list[Row]:
    """Of one line; the front's are the same for all."""
    rows: list[Row] = []
    for number, key in enumerate(keys[1:]):
        start = number * BLOCK_TOKENS
        raw = token_bytes(line[start : start + BLOCK_TOKENS])
        identity = Identity(Kind.BLOCK, FINGERPRINT.value, "", key, keys[number], start, raw)
        rows.append(row_of(identity, BLOCK_BYTES, tick + 1))
    return rows


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[Row]) -> None:
    listed = list(rows)
    columns = list(listed[0])
    wanted = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) "
    places = f"VALUES ({', '.join('?' * len(columns))})"
    connection.executemany(wanted + places, [tuple(row.values()) for row in listed])


def _make_files(shelf: Path, keys: Iterable[str]) -> None:
    for key in keys:
        path = shelf / key[:2] / key
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(0o600)
