"""Writes a session as one file, piece by piece: whatever its size, a part of it is in memory.

Any thread may read the file, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

from sessiond import __version__
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Tokens
from sessiond.errors import EngineError, StateDamaged, StateForeign, StateMissing, StateNewer
from sessiond.sessions.lander import Machine
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.shelf import Shelf
from sessiond.sessions.transfer import container
from sessiond.sessions.transfer.filename import file_name
from sessiond.sessions.transfer.manifest import (
    FORMAT,
    HEAD,
    MANIFEST,
    MOST_MEMBERS,
    PART,
    SEAL,
    STATE,
    TURNS,
    VERSION,
    Head,
    Manifest,
    Member,
    Origin,
    Policy,
    Session,
    StateMember,
    seal,
    written,
)
from sessiond.sessions.transfer.turn_line import line_of
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.store.chain import Kind
from sessiond.store.envelope import Buffer
from sessiond.store.found import Stored
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
_GONE = (StateMissing, StateDamaged, StateForeign, StateNewer)


@dataclass(frozen=True, slots=True)
class Piece:
    """A state in the store, as it will be told in the manifest."""

    key: str
    kind: Kind
    turn: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Contents:
    """All that goes into the file; `store` as the session's owner sees it."""

    head: Head
    turns: Sequence[Turn]
    pieces: Sequence[Piece] = ()
    store: Store | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """A file of this name, in parts that are read while they are taken. Close them."""

    file_name: str
    parts: AsyncGenerator[Buffer, None]


async def exported(
    record: SessionRecord, tree: SessionTree, shelf: Shelf | None, machine: Machine | None
) -> Exported:
    """As `contents_of`. Raises StoreFailed."""
    contents = await contents_of(record, tree, shelf, machine)
    return Exported(file_name(record.called), stream(contents))


async def contents_of(
    record: SessionRecord, tree: SessionTree, shelf: Shelf | None, machine: Machine | None
) -> Contents:
    """As it is now, the main line first; without a shelf there is no state. Raises StoreFailed.

    What is in memory is brought to disk before, where the machine is there. Event loop only.
    """
    now, turns = time.time(), tuple(tree)
    leaf = tree.main_line(now)
    leaves = sorted(tree.leaves(), key=lambda number: number != leaf)
    lines = [(number, tree.path_tokens(number)) for number in leaves]
    if shelf is None:
        return Contents(_head(record, now, None), turns)
    if machine is not None:
        with suppress(EngineError):
            await _save(record, machine)
    store = shelf.store.of(record.owner)
    pieces = await asyncio.to_thread(_find, store, lines)
    return Contents(_head(record, now, shelf.fingerprint), turns, pieces, store)


async def stream(contents: Contents) -> AsyncGenerator[Buffer, None]:
    """The file in parts of at most `PART` bytes; a piece read from disk while others run."""
    parts, reading = file_of(contents), None
    try:
        while True:
            reading = asyncio.create_task(asyncio.to_thread(next, parts, None))
            part = await asyncio.shield(reading)
            if part is None:
                return
            yield part
    finally:
        if reading is not None:
            await asyncio.wait({reading})
        parts.close()


def file_of(contents: Contents) -> Generator[Buffer, None, None]:
    """No state that the file has is evicted before it is read. Raises StoreFailed."""
    if contents.store is None:
        yield from _Writer(contents).parts()
        return
    with contents.store.lease([piece.key for piece in contents.pieces]):
        yield from _Writer(contents).parts()


class _Writer:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._members: list[Member] = []
        self._state: list[StateMember] = []

    def parts(self) -> Iterator[Buffer]:
        contents = self._contents
        yield from self._member(HEAD, [written(contents.head)])
        for lines in _together(map(line_of, contents.turns)):
            yield from self._member(TURNS.format(len(self._members)), lines)
        for piece in contents.pieces:
            yield from self._stored(piece)
        manifest = written(Manifest(tuple(self._members), tuple(self._state)))
        yield from self._member(MANIFEST, [manifest])
        yield from self._member(SEAL, [seal(sha256(manifest).hexdigest())])
        yield container.END

    def _stored(self, piece: Piece) -> Iterator[Buffer]:
        """Nothing where it has gone since it was found: it is read again after the import."""
        if self._contents.store is None or len(self._state) >= MOST_MEMBERS // 2:
            return
        try:
            payload = self._contents.store.read(piece.key)
        except _GONE as error:
            logger.warning("A saved state is not exported (%s).", error.reason)
            return
        name = STATE.format(len(self._state) + 1)
        size, digest = payload.nbytes, sha256(payload).hexdigest()
        told = StateMember(name, size, digest, piece.kind, piece.turn, piece.start, piece.end)
        self._state.append(told)
        yield from _framed(name, size, [payload])

    def _member(self, name: str, contents: Sequence[bytes]) -> Iterator[Buffer]:
        digest, size = sha256(), sum(map(len, contents))
        for content in contents:
            digest.update(content)
        self._members.append(Member(name, size, digest.hexdigest()))
        yield from _framed(name, size, contents)


def _framed(name: str, size: int, contents: Sequence[Buffer]) -> Iterator[Buffer]:
    yield container.opening(name, size)
    for content in contents:
        view = memoryview(content)
        for at in range(0, len(view), PART):
            yield view[at : at + PART]
    if padding := container.closing(size):
        yield padding


def _together(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines for one member: many short ones, or a long one."""
    some: list[bytes] = []
    for line in lines:
        some.append(line)
        if sum(map(len, some)) >= PART:
            yield some
            some = []
    if some:
        yield some


async def _save(record: SessionRecord, machine: Machine) -> None:
    """What is not on disk yet of the session's lines. Raises EngineError."""
    for view in await machine.residency.lines_of(record.id):
        if len(view.tokens):
            await machine.saver.save(view, parking=not view.running)
    await machine.checkpoints.write()


def _find(store: Store, lines: Sequence[tuple[int, Tokens]]) -> list[Piece]:
    """Each once. What goes beyond a line belongs to others, too, and stays here."""
    found: dict[str, Piece] = {}
    for turn, tokens in lines:
        for piece in _of_line(turn, store.lookup(tokens)):
            found.setdefault(piece.key, piece)
    return list(found.values())


def _of_line(turn: int, stored: Stored) -> Iterator[Piece]:
    for block in stored.blocks:
        if block.usable == block.length:
            yield Piece(block.key, Kind.BLOCK, turn, block.start, block.start + block.length)
    for snapshot in stored.snapshots:
        yield Piece(snapshot.key, snapshot.kind, turn, 0, snapshot.position)


def _head(record: SessionRecord, now: float, marks: Fingerprint | None) -> Head:
    origin = Origin(marks.value, marks.model, marks.settings) if marks else Origin()
    session = Session(
        name=record.called,
        named=record.named,
        agent=record.agent,
        title=record.title,
        policy=cast(Policy | None, record.policy),
        pinned_front=record.pinned_front,
        created=record.created,
    )
    return Head(FORMAT, VERSION, __version__, now, session, origin)
