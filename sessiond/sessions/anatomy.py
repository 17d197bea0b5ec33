"""A session's main line laid open: where each piece of its state lies, and what its last turn did.

It only looks: nothing is touched, restored or counted as used by it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Literal

from sessiond.engine.memory import Memory, Tokens, common_prefix, is_prefix
from sessiond.engine.sequence import Owner, whose
from sessiond.errors import StateError, TemplateError
from sessiond.sessions.boundaries import line_boundaries
from sessiond.sessions.health import Loaded
from sessiond.sessions.lander import Machine
from sessiond.sessions.overview import latest_turns
from sessiond.sessions.prompt import Boundaries
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.shelf import Shelf
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import MissCause, Source, TurnSummary
from sessiond.store.chain import BLOCK_TOKENS
from sessiond.store.found import Stored, StoredSnapshot

Place = Literal["memory", "disk", "missing"]
SnapshotPlace = Literal["context", "ring", "disk"]
KEPT_FRONTS = 256
TURNS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `[start, start + length)`. In `memory` is in the context; `on_disk` may be both.

    A block at most, where the state can be cut into blocks; else all that one state reaches over.
    """

    start: int
    length: int
    where: Place
    on_disk: bool


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """State of the first `position` tokens, at one place or several."""

    position: int
    where: tuple[SnapshotPlace, ...]


@dataclass(frozen=True, slots=True)
class LastTurn:
    """The last turn of the line landed on `position` and evaluated `evaluated` prompt tokens."""

    turn: int
    position: int
    source: Source
    evaluated: int
    restored_tokens: int
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float
    miss: MissCause | None
    created: float


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Positions and lengths in tokens. `front`: where the system prompt and the tools end, None
    where that is not known. `known`: it is known where its state lies, which it is from the first
    time on that the model was loaded.

    `needs_snapshots`: only there can the state be landed on. `last_turns` are the session's, the
    newest first.
    """

    session: str
    known: bool
    tokens: int
    in_context: int
    front: int | None
    needs_snapshots: bool
    blocks: tuple[Piece, ...]
    snapshots: tuple[SnapshotMark, ...]
    last_turn: LastTurn | None
    last_turns: tuple[TurnSummary, ...]


class Anatomist:
    """Event loop only."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._fronts: OrderedDict[tuple[str, int, str], int | None] = OrderedDict()

    async def look(self, name: str, shelf: Shelf | None, loaded: Loaded | None) -> Anatomy:
        """What cannot be read of its state counts as missing.

        Raises SessionNotFound, LedgerError.
        """
        record, tree = self._register[name], await self._register.tree(name)
        leaf = tree.main_line(time.time())
        nothing = Anatomy(
            session=record.name,
            known=shelf is not None,
            tokens=tree.length(leaf),
            in_context=0,
            front=None,
            needs_snapshots=False,
            blocks=(),
            snapshots=(),
            last_turn=None if leaf is None else _last_turn(tree, leaf),
            last_turns=latest_turns(tree, TURNS_SHOWN),
        )
        if leaf is None or shelf is None:
            return nothing
        found = replace(nothing, front=await self._front(record, tree, leaf, loaded))
        machine = loaded.machine if loaded else None
        return await _with_state(found, record, tree, leaf, shelf, machine)

    async def _front(
        self, record: SessionRecord, tree: SessionTree, leaf: int, loaded: Loaded | None
    ) -> int | None:
        """Rendering takes its time: once for each line."""
        step = _rendered_last(tree, leaf)
        key = (record.id, step, tree[step].tokenizer)
        if key not in self._fronts and loaded is not None:
            path = tree.path(step)
            try:
                found = await asyncio.to_thread(_boundaries, path, loaded, record.clock)
            except TemplateError:
                return None
            self._fronts[key] = found.front
            if len(self._fronts) > KEPT_FRONTS:
                self._fronts.popitem(last=False)
        return self._fronts.get(key)


def _boundaries(path: Sequence[Turn], loaded: Loaded, now: datetime) -> Boundaries:
    """Of a line's turns. Blocks the thread: it may have very many."""
    alone = SessionTree()
    for turn in path:
        alone.add(turn)
    return line_boundaries(path[-1].number, alone, loaded.renderer, now)


def _rendered_last(tree: SessionTree, leaf: int) -> int:
    """The last turn on the path to `leaf` whose whole prompt was rendered."""
    path = tree.path(leaf)
    whole = (turn for turn in reversed(path) if turn.kept != tree.length(turn.parent))
    return next(whole, path[0]).number


async def _with_state(
    found: Anatomy,
    record: SessionRecord,
    tree: SessionTree,
    leaf: int,
    shelf: Shelf,
    machine: Machine | None,
) -> Anatomy:
    tokens = tree.path_tokens(leaf)
    line = Owner(record.id, tree.path(leaf)[0].number, record.owner)
    views = [view.tokens for view in await shelf.views() if whose(view.owner) == record.owner]
    store = shelf.store.of(record.owner)
    try:
        stored = await asyncio.to_thread(store.lookup, tokens)
    except StateError:
        stored = Stored()
    ring = machine.checkpoints.find(line, tokens) if machine else []
    shared = max((common_prefix(view, tokens) for view in views), default=0)
    needs_snapshots = shelf.whole or shelf.memory.needs_snapshot
    standing = _standing(views, tokens) if needs_snapshots else None
    return replace(
        found,
        in_context=shared,
        needs_snapshots=needs_snapshots,
        blocks=tuple(pieces(len(tokens), shared, stored, ring, shelf.memory, whole=shelf.whole)),
        snapshots=marks(standing, ring, stored.snapshots),
    )


def _standing(views: Sequence[Tokens], tokens: Tokens) -> int | None:
    """Where the longest sequence ends that holds nothing but a beginning of `tokens`."""
    ends = (len(view) for view in views if is_prefix(view, tokens))
    return max(ends, default=0) or None


def pieces(
    tokens: int,
    shared: int,
    stored: Stored,
    ring: Sequence[StoredSnapshot],
    memory: Memory,
    *,
    whole: bool = False,
) -> Iterator[Piece]:
    """All of a line of `tokens` tokens, of which the first `shared` are in the context."""
    if memory.has_blocks and not whole:
        for start in range(0, tokens, BLOCK_TOKENS):
            length = min(BLOCK_TOKENS, tokens - start)
            yield from _cut(start, length, shared, min(stored.tokens, start + length))
    else:
        disk = max((one.position for one in stored.snapshots), default=0)
        memory_end = max([shared, *(one.position for one in ring)])
        yield from _cut(0, tokens, memory_end, disk)


def _cut(start: int, length: int, memory: int, disk: int) -> Iterator[Piece]:
    """`[start, start + length)` at the ends of what is in memory and what is on disk."""
    end = start + length
    cuts = sorted({start, end, *(at for at in (memory, disk) if start < at < end)})
    for begin, stop in pairwise(cuts):
        on_disk = stop <= disk
        where: Place = "memory" if stop <= memory else "disk" if on_disk else "missing"
        yield Piece(begin, stop - begin, where, on_disk)


def marks(
    standing: int | None, ring: Sequence[StoredSnapshot], stored: Sequence[StoredSnapshot]
) -> tuple[SnapshotMark, ...]:
    """`standing` is where the context itself can be gone on from, if only there."""
    found: defaultdict[int, list[SnapshotPlace]] = defaultdict(list)
    if standing is not None:
        found[standing].append("context")
    for position in sorted({one.position for one in ring}):
        found[position].append("ring")
    for position in sorted({one.position for one in stored}):
        found[position].append("disk")
    return tuple(SnapshotMark(at, tuple(found[at])) for at in sorted(found))


def _last_turn(tree: SessionTree, leaf: int) -> LastTurn:
    turn = tree[leaf]
    stats = turn.stats
    return LastTurn(
        turn=leaf,
        position=stats.cached,
        source=stats.source,
        evaluated=stats.prefilled,
        restored_tokens=stats.restored,
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=len(turn.reply_tokens),
        ttft_ms=stats.ttft_ms,
        miss=stats.miss.cause if stats.miss else None,
        created=turn.created,
    )
