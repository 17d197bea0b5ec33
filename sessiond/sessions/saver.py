"""Brings the state of resident lines to disk: when the engine is idle, else by age or size.

Everything here is a cache of the ledger, so a failed write is counted and costs prefill, nothing
else. Blocks are written from here, snapshots through `checkpoints`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from sessiond.engine.capture import Capture
from sessiond.engine.context import Payload
from sessiond.engine.core import EngineCore
from sessiond.engine.memory import Memory, Tokens, common_prefix
from sessiond.engine.sequence import Owner, SequenceView, whose
from sessiond.engine.thread import Engine
from sessiond.errors import SessiondError, StateError, StoreFailed, StoreFull
from sessiond.metrics import SAVE_FAILURES, SNAPSHOTS_SUPERSEDED
from sessiond.sessions.calm import RARE_S, Calm
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.store.chain import BLOCK_TOKENS, Kind
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
T = TypeVar("T")

SETTLE_S = 1.0
"""Idle time before anything is written, so that turns in quick succession write once."""
COLLECT_S = 3.0
"""So long at most a capture waits for a moment in which nobody waits for a first token."""
MAX_AGE_S = 20.0
MAX_TOKENS = 2048
"""Unsaved state older or larger than this is written under load. Saving takes its time, and what is
promised is 30 s and 4,096 tokens."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """`length` tokens of a sequence are on disk, what came after is not, `since` (monotonic s)."""

    epoch: int
    length: int
    since: float


@dataclass(frozen=True, slots=True)
class Flushed:
    """So many sessions had state in the context that is on disk now, so many some that is not and
    will be evaluated again. `bytes` were written for it.
    """

    saved: int = 0
    lost: int = 0
    bytes: int = 0


class Saver:
    """Event loop only. `whole` models are saved at park and stop only, in one piece. `behind`: when
    it was tried last, not all could be saved, though the store is there to keep something.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        checkpoints: Checkpoints,
        memory: Memory,
        *,
        whole: bool,
    ) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._store = store
        self._memory = memory
        self.whole = whole
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._lock = asyncio.Lock()
        self._interim: dict[Owner | None, str] = {}
        self._saved: dict[int, _Saved] = {}
        self._last_activity = time.monotonic()
        self._poked = asyncio.Event()
        self._collected = time.monotonic()
        self._resting = False
        self._dozing = False
        self.behind = False

    def active(self) -> None:
        """A turn began or ended."""
        self._last_activity = time.monotonic()
        if self._dozing:
            self._poked.set()

    def progressed(self) -> None:
        """A prefill has evaluated a chunk: look soon, it may be much."""
        self._poked.set()

    @property
    def busy(self) -> bool:
        """Something is being saved."""
        return self._lock.locked()

    async def watch(self, busy: Callable[[], bool], calm: Calm) -> None:
        """Looks again and again what has to be written, until `rest`. `busy`: a turn is running.

        Where nothing has happened for a while there is nothing to write, until a turn begins.
        """
        while not await self._rests_within(self._pause(busy, calm)):
            try:
                if busy():
                    await self._collect()
                    await self._save_overdue()
                elif time.monotonic() - self._last_activity >= SETTLE_S:
                    await self.save_all()
            except (SessiondError, OSError) as error:
                _count_failure(error)

    def rest(self) -> None:
        """Let `watch` end when what it is at is done."""
        self._resting = True
        self._poked.set()

    async def save_all(self) -> None:
        """Every resident line, as far as it is not on disk yet."""
        views = [view for view in await self._engine.views() if len(view.tokens)]
        saved = [await self.save(view) for view in views if not self.whole]
        lost = await self._checkpoints.write()
        self.behind = self._store.quota > 0 and (not all(saved) or len(lost) > 0)

    async def save_for_stop(self, step: Callable[[], None] = lambda: None) -> Flushed:
        """As `save_all`, whole blobs too, and synced to the disk; `step` is called for every line.

        Whatever fails does not hinder the others. Raises only EngineError, for an engine that has
        stopped.
        """
        before = self._store.written
        views = [view for view in await self._engine.views() if len(view.tokens)]
        lost: set[str] = set()
        for view in views:
            if not await self._saved_for_stop(view):
                lost.add(_session(view.owner))
            step()
        try:
            lost.update(map(_session, await self._checkpoints.write()))
            await self._write(self._store.sync)
        except (SessiondError, OSError) as error:
            _count_failure(error)
            lost.update(_session(view.owner) for view in views)
        saved = {_session(view.owner) for view in views} - lost
        return Flushed(len(saved), len(lost), self._store.written - before)

    async def _saved_for_stop(self, view: SequenceView) -> bool:
        try:
            return await self.save(view, parking=True)
        except SessiondError as error:
            _count_failure(error)
            return False

    async def save(self, view: SequenceView, *, parking: bool = False) -> bool:
        """One line; whole blobs only with `parking`. False if that failed, which is counted.

        Raises only EngineError.
        """
        async with self._lock:
            if self.whole:
                return not parking or await self._save_whole(view)
            if self._is_saved(view):
                return True
            try:
                await self._checkpoints.collect()
                await self._save_blocks(view)
            except (StateError, OSError) as error:
                _count_failure(error)
                return False
            return True

    async def forget(self, session: str) -> None:
        """Write nothing more of the lines of session id `session`, which have left the context."""
        async with self._lock:
            await self._checkpoints.forget(session)
            for owner in [o for o in self._interim if o is not None and o.session == session]:
                del self._interim[owner]

    def close(self) -> None:
        self._writer.shutdown()

    def _pause(self, busy: Callable[[], bool], calm: Calm) -> float:
        self._dozing = calm.resting and not busy()
        return RARE_S if self._dozing else SETTLE_S / 2

    async def _rests_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._poked.wait()
        self._poked.clear()
        return self._resting

    async def _collect(self) -> None:
        """Captures come into the ring when nobody waits for a first token, else a little later."""
        now = time.monotonic()
        patient = now - self._collected < COLLECT_S
        if await self._checkpoints.collect(patient=patient):
            self._collected = now

    async def _save_overdue(self) -> None:
        for view in await self._engine.views():
            if self._is_overdue(view):
                await self.save(view)

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
        began, tokens, store = time.monotonic(), view.tokens, self._store.of(whose(view.owner))
        stored = await self._write(lambda: store.lookup(tokens))
        has_snapshot = any(s.position == len(tokens) for s in stored.snapshots)
        capture = None
        if self._memory.needs_snapshot and not (
            has_snapshot or self._checkpoints.will_write(view.owner, tokens)
        ):
            capture = await self._engine.call(lambda core: core.export_snapshot(view.seq))
            if common_prefix(capture.tokens, tokens) < len(tokens):
                return
            tokens = capture.tokens
        if self._memory.has_blocks and not await self._save_cells(view, tokens, stored.tokens):
            return
        await self._checkpoints.write()
        if capture is not None:
            await self._save_interim(capture)
        self._saved[view.seq] = _Saved(view.epoch, len(tokens), began)

    async def _save_cells(self, view: SequenceView, tokens: Tokens, stored: int) -> bool:
        """Blocks of [stored, end), a few each engine step. False if the line changed meanwhile."""
        if stored >= len(tokens):
            return True
        store = self._store.of(whose(view.owner))
        starts = range(stored - stored % BLOCK_TOKENS, len(tokens), BLOCK_TOKENS)
        spans = [(start, min(start + BLOCK_TOKENS, len(tokens))) for start in starts]
        while spans:
            payloads = await self._engine.call(_exporting(view.seq, view.epoch, tuple(spans)))
            if payloads is None:
                return False
            for payload in payloads:
                start, stop = spans.pop(0)
                await self._write(_putting(store, tokens[:stop], start, payload))
        return True

    async def _save_whole(self, view: SequenceView) -> bool:
        capture = await self._engine.call(lambda core: core.export_whole(view.seq))
        try:
            tokens, payload = capture.tokens, capture.payload
            store = self._store.of(whose(capture.owner))
            if len(tokens):
                await self._write(lambda: store.put_snapshot(tokens, payload, "whole"))
        except (StateError, OSError) as error:
            _count_failure(error)
            return False
        return True

    async def _save_interim(self, capture: Capture) -> None:
        """In the middle of a turn: of use until there is a later one."""
        if not len(capture.tokens):
            return
        store = self._store.of(whose(capture.owner))
        await self._write(lambda: store.put_snapshot(capture.tokens, capture.payload))
        found = await self._write(lambda: store.lookup(capture.tokens))
        end = len(capture.tokens)
        keys = [s.key for s in found.snapshots if (s.position, s.kind) == (end, Kind.SNAPSHOT)]
        last = self._interim.pop(capture.owner, None)
        if last is not None and last not in keys:
            SNAPSHOTS_SUPERSEDED.inc(await self._write(lambda: store.drop([last])))
        if keys:
            self._interim[capture.owner] = keys[0]

    async def _write(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)


def _session(owner: Owner | None) -> str:
    return owner.session if owner else ""


def _count_failure(error: Exception) -> None:
    SAVE_FAILURES.inc()
    said = isinstance(error, StoreFull | StoreFailed)  # by the store, once for as long as it lasts
    logger.log(logging.DEBUG if said else logging.WARNING, "State could not be saved: %s", error)


def _exporting(
    seq: int, epoch: int, spans: tuple[tuple[int, int], ...]
) -> Callable[[EngineCore], list[Payload] | None]:
    return lambda core: core.export_blocks(seq, epoch, spans)


def _putting(store: Store, tokens: Tokens, start: int, payload: Payload) -> Callable[[], int]:
    return lambda: store.put_block(tokens, start, payload)
