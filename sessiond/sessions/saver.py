"""Brings the state of resident lines to disk: when the engine is idle, and by age or size under load.

Everything here is a cache of the ledger, so a failed write is counted and costs prefill, nothing else.
Snapshots wait in memory for a moment, where the next turn can still land on them: those that a fast
sequence of turns supersedes are never written.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from sessiond.engine.context import Payload
from sessiond.engine.core import Capture, EngineCore
from sessiond.engine.memory import Memory, Tokens, common_prefix
from sessiond.engine.sequence import Owner, SequenceView
from sessiond.engine.thread import Engine
from sessiond.errors import SessiondError, StateError
from sessiond.metrics import SAVE_FAILURES, SNAPSHOTS_SUPERSEDED
from sessiond.store.chain import BLOCK_TOKENS, Kind
from sessiond.store.found import StoredSnapshot
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
T = TypeVar("T")

SETTLE_S = 1.0
"""Idle time before anything is written, so that turns in quick succession write once."""
MAX_AGE_S = 20.0
MAX_TOKENS = 3072
"""Unsaved state older or larger than this is written under load. Saving takes its time, and what is
promised is 30 s and 4,096 tokens."""
KEPT_SNAPSHOTS = 4
"""Of one line of talk, on disk and waiting in memory."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """`length` tokens of a sequence are on disk; what came after is unsaved `since` (monotonic s)."""

    epoch: int
    length: int
    since: float


class Saver:
    """Event loop only. `whole` models are saved at park and stop only, in one piece."""

    def __init__(self, engine: Engine, store: Store, memory: Memory, *, whole: bool) -> None:
        self._engine = engine
        self._store = store
        self._memory = memory
        self.whole = whole
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._lock = asyncio.Lock()
        self._captures: list[Capture] = []
        self._written: dict[Owner | None, list[str]] = {}
        self._saved: dict[int, _Saved] = {}
        self._last_activity = time.monotonic()

    def active(self) -> None:
        """A turn began or ended."""
        self._last_activity = time.monotonic()

    async def watch(self, busy: Callable[[], bool]) -> None:
        """Runs for ever: looks once a second what has to be written. `busy`: a turn is running."""
        while True:
            await asyncio.sleep(SETTLE_S / 2)
            try:
                if busy():
                    await self._save_overdue()
                elif time.monotonic() - self._last_activity >= SETTLE_S:
                    await self.save_all()
            except SessiondError as error:
                SAVE_FAILURES.inc()
                logger.warning("State could not be saved: %s", error)

    async def save_all(self) -> None:
        """Every resident line, as far as it is not on disk yet."""
        for view in await self._engine.views():
            if len(view.tokens) and not self.whole:
                await self.save(view)
        await self.write_captures()

    async def save_for_stop(self) -> None:
        """As `save_all`, whole blobs too, and synced to the disk."""
        for view in await self._engine.views():
            if len(view.tokens):
                await self.save(view, parking=True)
        await self.write_captures()
        await self._write(self._store.sync)

    async def save(self, view: SequenceView, *, parking: bool = False) -> None:
        """Blocks and snapshot of one line. `parking` saves whole blobs too. Raises only EngineError."""
        async with self._lock:
            if self.whole:
                if parking:
                    await self._save_whole(view)
                return
            if self._is_saved(view):
                return
            try:
                await self.collect()
                await self._save_blocks(view)
            except StateError as error:
                SAVE_FAILURES.inc()
                logger.warning("State could not be saved: %s", error)

    async def collect(self) -> None:
        """Take over what the engine has captured; it can be landed on from now on."""
        if not self._memory.needs_snapshot or self.whole:
            await self._engine.drain()
            return
        fresh = await self._engine.drain()
        self._captures += fresh
        self._forget_superseded()

    def captures_for(self, prompt: Tokens) -> list[tuple[StoredSnapshot, Capture]]:
        """Snapshots in memory whose tokens begin the prompt."""
        return [
            (
                StoredSnapshot(f"memory-{id(capture)}", len(capture.tokens), 0, Kind.SNAPSHOT),
                capture,
            )
            for capture in self._captures
            if common_prefix(capture.tokens, prompt) == len(capture.tokens)
        ]

    async def write_captures(self) -> None:
        await self.collect()
        while self._captures:
            capture = self._captures[0]
            try:
                await self._put_snapshot(capture)
            except StateError as error:
                SAVE_FAILURES.inc()
                logger.warning("A snapshot could not be saved: %s", error)
            if capture in self._captures:
                self._captures.remove(capture)

    def close(self) -> None:
        self._writer.shutdown()

    async def _save_overdue(self) -> None:
        for view in await self._engine.views():
            if self._is_overdue(view):
                await self.save(view)
        if len(self._captures) > KEPT_SNAPSHOTS:
            await self.write_captures()

    def _is_overdue(self, view: SequenceView) -> bool:
        now, saved = time.monotonic(), self._saved.get(view.seq)
        if saved is None or saved.epoch != view.epoch:
            saved = self._saved[view.seq] = _Saved(view.epoch, 0, now)
        unsaved = len(view.tokens) - saved.length
        if unsaved <= 0:
            self._saved[view.seq] = _Saved(view.epoch, saved.length, now)
        return unsaved >= MAX_TOKENS or (unsaved > 0 and now - saved.since >= MAX_AGE_S)

    def _is_saved(self, view: SequenceView) -> bool:
        saved = self._saved.get(view.seq)
        return saved is not None and (saved.epoch, saved.length) == (view.epoch, len(view.tokens))

    async def _save_blocks(self, view: SequenceView) -> None:
        began, tokens = time.monotonic(), view.tokens
        stored = await self._write(lambda: self._store.lookup(tokens))
        has_snapshot = any(s.position == len(tokens) for s in stored.snapshots)
        if self._memory.needs_snapshot and not (has_snapshot or self._is_captured(tokens)):
            capture = await self._engine.call(lambda core: core.export_snapshot(view.seq))
            if common_prefix(capture.tokens, tokens) < len(tokens):
                return
            tokens = capture.tokens
            await self._put_snapshot(capture)
        if self._memory.has_blocks and not await self._save_cells(view, tokens, stored.tokens):
            return
        await self.write_captures()
        self._saved[view.seq] = _Saved(view.epoch, len(tokens), began)

    async def _save_cells(self, view: SequenceView, tokens: Tokens, stored: int) -> bool:
        """Blocks of [stored, end), one engine step each. False if the line was changed meanwhile."""
        if stored >= len(tokens):
            return True
        for start in range(stored - stored % BLOCK_TOKENS, len(tokens), BLOCK_TOKENS):
            stop = min(start + BLOCK_TOKENS, len(tokens))
            payload = await self._engine.call(_exporting(view.seq, view.epoch, start, stop))
            if payload is None:
                return False
            await self._write(_putting(self._store, tokens[:stop], start, payload))
        return True

    async def _save_whole(self, view: SequenceView) -> None:
        capture = await self._engine.call(lambda core: core.export_whole(view.seq))
        try:
            await self._write(
                lambda: self._store.put_snapshot(capture.tokens, capture.payload, "whole")
            )
        except StateError as error:
            SAVE_FAILURES.inc()
            logger.warning("State could not be saved: %s", error)

    async def _put_snapshot(self, capture: Capture) -> None:
        if not len(capture.tokens):
            return
        await self._write(lambda: self._store.put_snapshot(capture.tokens, capture.payload))
        await self._drop_superseded(capture)

    async def _drop_superseded(self, capture: Capture) -> None:
        """Keep the last few snapshots of the line; one that another line also wrote stays."""
        found = await self._write(lambda: self._store.lookup(capture.tokens))
        own = self._written.setdefault(capture.owner, [])
        own += [s.key for s in found.snapshots[-1:] if s.key not in own]
        excess = [own.pop(0) for _ in range(max(0, len(own) - KEPT_SNAPSHOTS))]
        others = {key for keys in self._written.values() for key in keys}
        superseded = [key for key in excess if key not in others]
        if superseded:
            SNAPSHOTS_SUPERSEDED.inc(await self._write(lambda: self._store.drop(superseded)))

    def _is_captured(self, tokens: Tokens) -> bool:
        return any(
            len(capture.tokens) == len(tokens)
            and common_prefix(capture.tokens, tokens) == len(tokens)
            for capture in self._captures
        )

    def _forget_superseded(self) -> None:
        """Of each line only the last few wait in memory."""
        lines: dict[Owner | None, list[Capture]] = {}
        for capture in self._captures:
            lines.setdefault(capture.owner, []).append(capture)
        kept = itertools.chain.from_iterable(line[-KEPT_SNAPSHOTS:] for line in lines.values())
        keep = {id(capture) for capture in kept}
        self._captures = [capture for capture in self._captures if id(capture) in keep]

    async def _write(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)


def _exporting(
    seq: int, epoch: int, start: int, stop: int
) -> Callable[[EngineCore], Payload | None]:
    return lambda core: core.export_block(seq, epoch, start, stop)


def _putting(store: Store, tokens: Tokens, start: int, payload: Payload) -> Callable[[], int]:
    return lambda: store.put_block(tokens, start, payload)
