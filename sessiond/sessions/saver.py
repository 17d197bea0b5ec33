"""Brings the state of resident lines to disk: when the engine is idle, else by age or size.

Everything here is a cache of the ledger, so a failed write is counted and costs prefill, nothing
else. Snapshots wait in memory for a moment, where the next turn can still land on them: those that
a fast sequence of turns supersedes are never written.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

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
SnapshotKind = Literal["snapshot", "whole"]

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
    """`length` tokens of a sequence are on disk, what came after is not, `since` (monotonic s)."""

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
        self._interim: dict[Owner | None, str] = {}
        self._saved: dict[int, _Saved] = {}
        self._last_activity = time.monotonic()
        self._poked = asyncio.Event()
        self._resting = False

    def active(self) -> None:
        """A turn began or ended."""
        self._last_activity = time.monotonic()

    def progressed(self) -> None:
        """A prefill has evaluated a chunk: look soon, it may be much."""
        self._poked.set()

    async def watch(self, busy: Callable[[], bool]) -> None:
        """Looks again and again what has to be written, until `rest`. `busy`: a turn is running."""
        while not await self._rests_within(SETTLE_S / 2):
            try:
                if busy():
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
        for view in await self._engine.views():
            if len(view.tokens) and not self.whole:
                await self.save(view)
        await self.write_captures()

    async def save_for_stop(self) -> None:
        """As `save_all`, whole blobs too, and synced to the disk. Raises only EngineError."""
        for view in await self._engine.views():
            if len(view.tokens):
                await self.save(view, parking=True)
        await self.write_captures()
        try:
            await self._write(self._store.sync)
        except (StateError, OSError) as error:
            _count_failure(error)

    async def save(self, view: SequenceView, *, parking: bool = False) -> None:
        """One line; whole blobs only with `parking`. Raises only EngineError."""
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
            except (StateError, OSError) as error:
                _count_failure(error)

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
        async with self._lock:
            await self._write_waiting()

    async def forget(self, session: str) -> None:
        """Write nothing more of the lines of session id `session`, which have left the context."""
        async with self._lock:
            await self.collect()
            self._captures = [c for c in self._captures if not _is_of(c.owner, session)]
            for known in (self._written, self._interim):
                for owner in [owner for owner in known if _is_of(owner, session)]:
                    del known[owner]

    def close(self) -> None:
        self._writer.shutdown()

    async def _rests_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._poked.wait()
        self._poked.clear()
        return self._resting

    async def _write_waiting(self) -> None:
        await self.collect()
        while self._captures:
            capture = self._captures[0]
            try:
                await self._put_snapshot(capture)
            except (StateError, OSError) as error:
                _count_failure(error)
            # Another turn may have superseded it meanwhile.
            self._captures = [waiting for waiting in self._captures if waiting is not capture]

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
        capture = None
        if self._memory.needs_snapshot and not (has_snapshot or self._is_captured(tokens)):
            capture = await self._engine.call(lambda core: core.export_snapshot(view.seq))
            if common_prefix(capture.tokens, tokens) < len(tokens):
                return
            tokens = capture.tokens
        if self._memory.has_blocks and not await self._save_cells(view, tokens, stored.tokens):
            return
        await self._write_waiting()
        if capture is not None:
            await self._put_snapshot(capture, interim=view.running)
        self._saved[view.seq] = _Saved(view.epoch, len(tokens), began)

    async def _save_cells(self, view: SequenceView, tokens: Tokens, stored: int) -> bool:
        """Blocks of [stored, end), a few each engine step. False if the line changed meanwhile."""
        if stored >= len(tokens):
            return True
        starts = range(stored - stored % BLOCK_TOKENS, len(tokens), BLOCK_TOKENS)
        spans = [(start, min(start + BLOCK_TOKENS, len(tokens))) for start in starts]
        while spans:
            payloads = await self._engine.call(_exporting(view.seq, view.epoch, tuple(spans)))
            if payloads is None:
                return False
            for payload in payloads:
                start, stop = spans.pop(0)
                await self._write(_putting(self._store, tokens[:stop], start, payload))
        return True

    async def _save_whole(self, view: SequenceView) -> None:
        capture = await self._engine.call(lambda core: core.export_whole(view.seq))
        try:
            await self._put_snapshot(capture, "whole")
        except (StateError, OSError) as error:
            _count_failure(error)

    async def _put_snapshot(
        self, capture: Capture, kind: SnapshotKind = "snapshot", *, interim: bool = False
    ) -> None:
        """`interim`: in the middle of a reply, of use until there is a later one."""
        if not len(capture.tokens):
            return
        await self._write(lambda: self._store.put_snapshot(capture.tokens, capture.payload, kind))
        found = await self._write(lambda: self._store.lookup(capture.tokens))
        end = len(capture.tokens)
        covered = kind == "whole" or not self._memory.has_blocks or found.tokens >= end
        for key in [s.key for s in found.snapshots if (s.position, s.kind) == (end, kind)]:
            await self._supersede(capture.owner, key, interim=interim, covered=covered)

    async def _supersede(
        self, owner: Owner | None, key: str, *, interim: bool, covered: bool
    ) -> None:
        """Keep the last few snapshots of the line; one that another line also wrote stays.

        `covered`: its blocks are on disk, so it can be landed on.
        """
        own = self._written.setdefault(owner, [])
        excess = [self._interim.pop(owner)] if covered and owner in self._interim else []
        if interim:
            self._interim[owner] = key
        elif key not in own:
            own.append(key)
            excess += own[:-KEPT_SNAPSHOTS]
            del own[:-KEPT_SNAPSHOTS]
        kept = {key, *itertools.chain(*self._written.values()), *self._interim.values()}
        superseded = [old for old in excess if old not in kept]
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


def _is_of(owner: Owner | None, session: str) -> bool:
    return owner is not None and owner.session == session


def _count_failure(error: Exception) -> None:
    SAVE_FAILURES.inc()
    logger.warning("State could not be saved: %s", error)


def _exporting(
    seq: int, epoch: int, spans: tuple[tuple[int, int], ...]
) -> Callable[[EngineCore], list[Payload] | None]:
    return lambda core: core.export_blocks(seq, epoch, spans)


def _putting(store: Store, tokens: Tokens, start: int, payload: Payload) -> Callable[[], int]:
    return lambda: store.put_block(tokens, start, payload)
