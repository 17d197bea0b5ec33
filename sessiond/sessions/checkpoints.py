"""Snapshots on their way: from the engine's staging buffers into the ring, from there to disk.

Nothing of it lies before a first token: the engine freezes in no time, what it froze is read out
when nobody waits for a prefill, copied and checksummed by a worker, and written when it is idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from sessiond.engine.capture import Capture, CaptureCounts
from sessiond.engine.context import Payload
from sessiond.engine.memory import Tokens, as_tokens, is_prefix
from sessiond.engine.sequence import Owner, whose
from sessiond.engine.thread import Engine
from sessiond.errors import EngineError, StateError, StateMissing, StoreFailed, StoreFull
from sessiond.metrics import (
    CAPTURE_SECONDS,
    CAPTURES,
    DRAIN_SECONDS,
    SAVE_FAILURES,
    SNAPSHOTS_SUPERSEDED,
    Total,
)
from sessiond.sessions.supersede import KEPT_IN_MEMORY, Written, superseded
from sessiond.store.chain import Kind
from sessiond.store.found import StoredSnapshot
from sessiond.store.loss import Rank
from sessiond.store.ring import Ring
from sessiond.store.ring_entry import Refusal, Reservation, RingEntry, RingStats
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
T = TypeVar("T")
_CAPTURED = {how: Total(CAPTURES.labels(how)) for how in ("frozen", "direct", "pageable")}
_CAPTURE_SECONDS, _DRAIN_SECONDS = Total(CAPTURE_SECONDS), Total(DRAIN_SECONDS)
LEAST_WRITTEN = Rank.LAST_BOUNDARY
"""Snapshots below this rank are in memory only."""


class Checkpoints:
    """Event loop only. `lease` may be used from any thread."""

    def __init__(self, engine: Engine, ring: Ring, store: Store) -> None:
        self._engine = engine
        self._ring = ring
        self._store = store
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ring")
        self._lock = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._tokens: dict[str, Tokens] = {}
        self._on_disk: dict[str, Written] = {}
        self._handled: set[str] = set()
        self._emptying: asyncio.Task[None] | None = None
        self._asking = False
        self._moving: deque[Capture] = deque()

    @property
    def stats(self) -> RingStats:
        return self._ring.stats()

    @property
    def entries(self) -> list[RingEntry]:
        return self._ring.entries()

    async def collect(self, *, patient: bool = False) -> bool:
        """Bring what the engine has captured into the ring; it can be landed on from then on.

        `patient`: not while somebody waits for a first token. False if it was not done.
        """
        if patient and self._engine.core.prefilling:
            return False
        if self._emptying is not None:
            await self._emptying
        async with self._lock:
            await self._bring(self._engine.drain())
        _observe(self._engine.core.captures)
        return True

    def awaits(self, line: Owner, prompt: Tokens, position: int) -> bool:
        """Whether `collect` may bring a snapshot of more than `position` tokens of the prompt."""
        captured = [*self._engine.core.captured, *((c.tokens, c.owner) for c in self._moving)]
        return self._asking or any(
            len(tokens) > position and whose(owner) == whose(line) and is_prefix(tokens, prompt)
            for tokens, owner in captured
        )

    def progressed(self) -> None:
        """A prefill goes on: free the staging buffers it has filled, so that it finds one again."""
        if self._engine.core.drained and (self._emptying is None or self._emptying.done()):
            self._emptying = asyncio.create_task(self._empty_staging())

    def find(self, line: Owner, prompt: Tokens) -> list[StoredSnapshot]:
        """Snapshots in memory of beginnings of a prompt, for `line` to go on from. They cost no
        bytes to read.
        """
        found = self._ring.find(whose(line), prompt)
        return [StoredSnapshot(entry.key, entry.position, 0, Kind.SNAPSHOT) for entry in found]

    @contextmanager
    def lease(self, key: str, line: Owner | None = None) -> Iterator[Payload]:
        """For `line` to go on from. Raises StateMissing, StateDamaged."""
        with self._ring.lease(key, line) as payload:
            yield payload

    def will_write(self, line: Owner | None, tokens: Tokens) -> bool:
        """Whether the snapshot at the end of `tokens` is in memory and goes to disk from there."""
        found = self._ring.find(whose(line), tokens)[-1:]
        return any(e.position == len(tokens) and e.rank >= LEAST_WRITTEN for e in found)

    async def write(self) -> list[Owner]:
        """Bring to disk what is worth it and not there yet, and drop what it supersedes. The lines
        of those that could not be written, which is counted.

        What later snapshots supersede before it was written is not written at all.
        """
        async with self._writing:
            return await self._write()

    async def _write(self) -> list[Owner]:
        failed: list[Owner] = []
        await self.collect()
        fresh = [one for one in self._in_memory() if one.key not in self._handled]
        needless = set(superseded([*self._on_disk.values(), *fresh]))
        for snapshot in fresh:
            if snapshot.key in needless:
                self._handled.add(snapshot.key)
            else:
                failed += [] if await self._wrote(snapshot) else _line(snapshot)
        await self._drop_superseded()
        return failed

    async def forget(self, session: str) -> None:
        """Drop the snapshots of the lines of session id `session` from memory."""
        await self.collect()
        self._ring.drop_line(lambda line: isinstance(line, Owner) and line.session == session)
        self._on_disk = {
            key: written
            for key, written in self._on_disk.items()
            if not (isinstance(written.line, Owner) and written.line.session == session)
        }
        self._prune()

    def close(self) -> None:
        self._worker.shutdown()
        self._ring.close()

    async def _empty_staging(self) -> None:
        with suppress(EngineError):  # it has stopped, or failed its runs: there is nothing to take
            async with self._lock:
                await self._bring(self._engine.take_drained())

    async def _bring(self, captures: Awaitable[list[Capture]]) -> None:
        """Into the ring. With the lock held."""
        self._asking = True
        try:
            self._moving.extend(await captures)
        finally:
            self._asking = False
        while self._moving:
            try:
                await self._publish(self._moving[0])
            finally:
                self._moving.popleft()

    async def _publish(self, capture: Capture) -> None:
        size = len(capture.payload)
        rank = Rank(capture.rank)
        reserved = (
            self._ring.reserve(whose(capture.owner), capture.owner, capture.tokens, rank, size)
            if len(capture.tokens)
            else Refusal.PRESENT
        )
        if isinstance(reserved, Refusal):
            capture.release()
            return
        if await self._run(lambda: self._fill(reserved, capture)):
            self._remember(reserved.key, as_tokens(capture.tokens).copy())
            own = [one for one in self._in_memory() if one.line == capture.owner]
            self._ring.demote(superseded(own, KEPT_IN_MEMORY))
            self._prune()

    def _remember(self, key: str, tokens: Tokens) -> None:
        """What `tokens` go on from shares their memory from now on: one array for each branch."""
        for other, known in self._tokens.items():
            if is_prefix(known, tokens):
                self._tokens[other] = tokens[: len(known)]
        self._tokens[key] = tokens

    def _fill(self, reserved: Reservation, capture: Capture) -> bool:
        """Worker thread."""
        try:
            size = len(capture.payload)
            reserved.buffer[:size] = capture.payload
            return self._ring.publish(reserved, size)
        except BaseException:
            self._ring.withdraw(reserved)
            raise
        finally:
            capture.release()

    def _copy_to_disk(self, snapshot: Written) -> int:
        """Worker thread."""
        store = self._store.of(whose(snapshot.line))
        with self._ring.lease(snapshot.key) as payload:
            return store.put_snapshot(snapshot.tokens, payload)

    def _in_memory(self) -> list[Written]:
        """What is worth being written."""
        return [
            Written(entry.key, entry.line, self._tokens[entry.key], entry.rank)
            for entry in self._ring.entries()
            if entry.rank >= LEAST_WRITTEN and entry.key in self._tokens
        ]

    async def _wrote(self, snapshot: Written) -> bool:
        try:
            await self._run(lambda: self._copy_to_disk(snapshot))
        except StateMissing:
            return True
        except (StateError, OSError) as error:
            SAVE_FAILURES.inc()
            said = isinstance(error, StoreFull | StoreFailed)
            level = logging.DEBUG if said else logging.WARNING
            logger.log(level, "A snapshot could not be saved: %s", error)
            return False
        self._handled.add(snapshot.key)
        self._on_disk[snapshot.key] = snapshot
        return True

    async def _drop_superseded(self) -> None:
        gone = superseded(list(self._on_disk.values()))
        if not gone:
            return
        SNAPSHOTS_SUPERSEDED.inc(await self._run(lambda: self._store.drop(gone)))
        for key in gone:
            self._on_disk.pop(key, None)
        self._prune()

    def _prune(self) -> None:
        """Forget the tokens of snapshots that are gone."""
        here = {entry.key for entry in self._ring.entries()}
        self._tokens = {key: tokens for key, tokens in self._tokens.items() if key in here}
        self._handled &= here

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _line(snapshot: Written) -> list[Owner]:
    return [snapshot.line] if isinstance(snapshot.line, Owner) else []


def _observe(counts: CaptureCounts) -> None:
    for how, total in _CAPTURED.items():
        total.reach(getattr(counts, how))
    _CAPTURE_SECONDS.reach(counts.engine_ms / 1e3)
    _DRAIN_SECONDS.reach(counts.drain_ms / 1e3)
