"""Which states on disk belong to pinned sessions: those are never evicted.

Worked out anew when a session is pinned or unpinned, and after its state was saved.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass

from sessiond.errors import LedgerError, SessionNotFound, StateError
from sessiond.sessions.calm import Calm
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
LOOK_S = 2.0
SAVED_WITHIN_S = 900.0
"""State of a turn is on disk so long after it at the latest, or never."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The keys of a session's lines, and what they were found for."""

    mark: Hashable
    keys: frozenset[str]


class Pins:
    """Event loop only. Of the model whose states `store` has; others come and go by their use."""

    def __init__(self, register: Register, store: Store) -> None:
        self._register = register
        self._store = store
        self._found: dict[str, _Found] = {}
        self._told: frozenset[str] | None = None

    async def watch(self, calm: Calm) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            try:
                await self.refresh()
            except (LedgerError, StateError, SessionNotFound) as error:
                logger.debug("Pins are looked up again in a moment: %s", error)
            await calm.pause(LOOK_S)

    async def refresh(self) -> None:
        """The store keeps the state of what is pinned now. Raises LedgerError, StateError."""
        pinned = [record for record in self._register.records if record.pinned]
        for record in pinned:
            mark = self._mark(record)
            known = self._found.get(record.id)
            if known is None or known.mark != mark:
                tree = await self._register.glance(record.name)
                keys = await asyncio.to_thread(keys_of, tree, self._store.of(record.owner))
                self._found[record.id] = _Found(mark, keys)
        ids = {record.id for record in pinned}
        self._found = {id_: found for id_, found in self._found.items() if id_ in ids}
        wanted = frozenset[str]().union(*(found.keys for found in self._found.values()))
        if wanted != self._told:
            await asyncio.to_thread(self._store.pin, wanted)
            self._told = wanted

    def _mark(self, record: SessionRecord) -> Hashable:
        """The same for as long as nothing can have been saved of the session."""
        recent = time.time() - record.last_used < SAVED_WITHIN_S
        return record.last_used, self._store.written if recent else None


def keys_of(tree: SessionTree, store: Store) -> frozenset[str]:
    """Of all that is stored of all lines. Reads the index; any thread. Raises StateError."""
    keys: set[str] = set()
    for leaf in tree.leaves():
        stored = store.lookup(tree.path_tokens(leaf))
        keys.update(block.key for block in stored.blocks)
        keys.update(snapshot.key for snapshot in stored.snapshots)
    return frozenset(keys)
