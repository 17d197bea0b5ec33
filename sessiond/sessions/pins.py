"""Which states on disk belong to pinned sessions: those are never evicted.

Worked out anew when a session is pinned or unpinned, and after its state was saved; whether the
model is in memory or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass

from sessiond.errors import LedgerError, SessionNotFound, StateError
from sessiond.sessions.calm import Calm
from sessiond.sessions.naming import HOUSE
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
LOOK_S = 2.0
OWNERS_SHARE = 0.5
"""Of the quota, for all that owners of keys pin: they must leave room for others."""
SAVED_WITHIN_S = 900.0
"""State of a turn is on disk so long after it at the latest, or never."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Bytes of what is stored of a session's lines, by key, and what they were found for."""

    mark: Hashable
    sizes: Mapping[str, int]


class Pins:
    """Event loop only. Of the model whose states the store has; others come and go by their use."""

    def __init__(self, register: Register, store: Callable[[], Store | None]) -> None:
        """`store` as the model that was loaded last sees it, None until one was."""
        self._register = register
        self._store = store
        self._found: dict[str, _Found] = {}
        self._told: frozenset[str] | None = None
        self._refreshing = asyncio.Lock()
        self._resizing = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False
        self._passed = 0

    def start(
        self, spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]], calm: Calm
    ) -> None:
        """Look again and again, until `close`."""
        self._watching = spawn(self._watch(calm))

    async def close(self) -> None:
        """The store is not asked or told anything any more."""
        async with self._refreshing:
            self._closed = True
        if self._watching is not None:
            self._watching.cancel()

    async def told(self) -> None:
        """As `refresh`; where that fails it is tried again in a moment."""
        try:
            await self.refresh()
        except (LedgerError, StateError, SessionNotFound) as error:
            logger.debug("Pins are looked up again in a moment: %s", error)

    async def refresh(self) -> None:
        """The store keeps the state of what is pinned now. Raises LedgerError, StateError."""
        async with self._refreshing:
            store = self._store()
            if store is not None and not self._closed:
                await self._refresh(store)

    async def resize(self, limits: Callable[[int], tuple[int, int]]) -> None:
        """Change the store's quota and what it keeps free, which `limits` says for what it has, all
        in bytes. What has no room then goes, never what is pinned by now.

        One such change after the other, each to what `limits` says by then. Raises StateError,
        OSError.
        """
        async with self._resizing:
            if (store := self._store()) is not None:
                await self.told()
                await asyncio.to_thread(lambda: store.resize(*limits(store.usage().bytes)))

    # --- inside

    async def _watch(self, calm: Calm) -> None:
        while True:
            await self.told()
            await calm.pause(LOOK_S)

    async def _refresh(self, store: Store) -> None:
        pinned = [record for record in self._register.records if record.pinned]
        for record in pinned:
            mark = _mark(record, store)
            known = self._found.get(record.id)
            if known is None or known.mark != mark:
                tree = await self._register.glance(record.name)
                sizes = await asyncio.to_thread(sizes_of, tree, store.of(record.owner))
                self._found[record.id] = _Found(mark, sizes)
        ids = {record.id for record in pinned}
        self._found = {id_: found for id_, found in self._found.items() if id_ in ids}
        usage = await asyncio.to_thread(store.usage) if pinned else None
        wanted = self._wanted(pinned, int(usage.quota * OWNERS_SHARE) if usage else 0)
        if wanted != self._told:
            await asyncio.to_thread(store.pin, wanted)
            self._told = wanted

    def _wanted(self, pinned: Sequence[SessionRecord], room: int) -> frozenset[str]:
        """All of the house, and `room` bytes of owners' sessions, those used last first."""
        kept, passed = set[str](), 0
        for record in sorted(pinned, key=lambda record: record.owner != HOUSE):
            new = {k: size for k, size in self._found[record.id].sizes.items() if k not in kept}
            if record.owner != HOUSE:
                if sum(new.values()) > room:
                    passed += 1
                    continue
                room -= sum(new.values())
            kept.update(new)
        if passed > self._passed:
            logger.warning("%d sessions that owners have pinned are beyond their share.", passed)
        self._passed = passed
        return frozenset(kept)


def _mark(record: SessionRecord, store: Store) -> Hashable:
    """The same for as long as nothing can have been saved of the session."""
    recent = time.time() - record.last_used < SAVED_WITHIN_S
    return store.fingerprint, record.last_used, store.written if recent else None


def sizes_of(tree: SessionTree, store: Store) -> dict[str, int]:
    """Bytes of all that is stored of all lines, by key. Reads the index; any thread.

    Raises StateError.
    """
    sizes: dict[str, int] = {}
    for leaf in tree.leaves():
        stored = store.lookup(tree.path_tokens(leaf))
        sizes |= {block.key: block.bytes for block in stored.blocks}
        sizes |= {snapshot.key: snapshot.bytes for snapshot in stored.snapshots}
    return sizes
