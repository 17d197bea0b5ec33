"""Housekeeping of the ledger: turns that were unused for too long go, a few at a time.

A line is used when a turn is added to it. What goes, and never goes, is in `outdated` and `exempt`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

from sessiond.errors import (
    Conflict,
    EngineError,
    LedgerError,
    SessionNotFound,
    StateError,
    Unavailable,
)
from sessiond.metrics import PRUNED_TURNS
from sessiond.sessions.deletion import forget_lines, forget_roots, forget_stored
from sessiond.sessions.floor import Floor
from sessiond.sessions.model_host import ModelHost
from sessiond.sessions.outline import TurnOutline, outline
from sessiond.sessions.overview import Overview
from sessiond.sessions.register import Register
from sessiond.sessions.retries import Retries
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree

logger = logging.getLogger(__name__)
SIDE_S = 3600.0
"""A line of one turn beside a longer one, a title or a try, is kept for so long."""
FIRST_S, EVERY_S = 600.0, 3600.0
"""The first look is late: the clock of a machine without a battery is set by then."""
AT_ONCE = 16
"""Turns removed in one transaction, so that a turn that ends meanwhile is written soon."""
PAGES = 256
"""Empty pages given back in one transaction: 1 MiB."""
_ROUNDS = 64
"""So often at most within one look."""


def exempt(record: SessionRecord) -> bool:
    """Of a session that is pinned or that a person named no turn ever goes by itself."""
    return record.pinned or record.named


def outdated(
    turns: Sequence[TurnOutline], last_used: float, now: float, keep: float
) -> frozenset[int]:
    """Which turns of a session go; never one that a turn which stays stands on. Pure.

    All turns on which nothing stands that was used within `keep` seconds, and of the side lines
    those of one turn beside a longer one after an hour. `last_used` is the session's own time of
    use, which is its latest turn's where it is later. `keep` 0: none ever.
    """
    if not keep or not turns:
        return frozenset()
    used = _used(turns, last_used)
    aged = {number for number, at in used.items() if at < now - keep}
    return frozenset(aged | _asides(turns, used, now - min(SIDE_S, keep), now))


def _used(turns: Sequence[TurnOutline], last_used: float) -> dict[int, float]:
    """When something that stands on each turn was last used."""
    used = {turn.number: turn.created for turn in turns}
    latest = max(turns, key=lambda turn: (turn.created, turn.number)).number
    used[latest] = max(used[latest], last_used)
    for turn in _leaves_first(turns):
        if turn.parent in used:
            used[turn.parent] = max(used[turn.parent], used[turn.number])
    return used


def _asides(
    turns: Sequence[TurnOutline], used: dict[int, float], before: float, now: float
) -> set[int]:
    """Side lines of one turn, not used since `before`, where there is a longer line."""
    parents, main = {turn.parent for turn in turns}, outline(turns, now).end
    if parents == {None}:
        return set()
    alone = {t.number for t in turns if t.parent is None and t.number not in parents}
    return {n for n in alone if used[n] < before and (main is None or n != main.number)}


def _leaves_first(turns: Sequence[TurnOutline]) -> list[TurnOutline]:
    """A turn's number is higher than its parent's."""
    return sorted(turns, key=lambda turn: turn.number, reverse=True)


def batches(gone: Collection[int]) -> Iterator[list[int]]:
    """In the order in which they can be removed, a few at a time."""
    ordered = sorted(gone, reverse=True)
    for at in range(0, len(ordered), AT_ONCE):
        yield ordered[at : at + AT_ONCE]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one look removed."""

    turns: int = 0
    sessions: int = 0

    def plus(self, other: Pruned) -> Pruned:
        return Pruned(self.turns + other.turns, self.sessions + other.sessions)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What pruning needs of the daemon. `alone` gives a session in which no turn runs, inside the
    context, or raises Conflict.
    """

    host: ModelHost
    floor: Floor
    alone: Callable[[str], AbstractAsyncContextManager[SessionRecord]]
    overview: Overview
    retries: Retries

    def removed(self, record: SessionRecord, gone: Collection[int] | None) -> None:
        """Nothing in memory tells of these turns any more; for None, of the session."""
        self.overview.forget(record.id)
        if gone is None:
            self.retries.forget(record.name)
        else:
            self.retries.forget_turns(record.name, gone)


class Pruner:
    """Event loop only. `keep` in seconds, 0 for ever."""

    def __init__(self, register: Register, around: Surroundings, keep: float) -> None:
        self._register = register
        self._around = around
        self.keep = keep

    async def watch(self, over: asyncio.Event) -> None:
        """Looks every hour, for the first time some minutes after the start, until `over`.

        Whatever goes wrong, it is logged and looks again.
        """
        wait = FIRST_S
        while not await _comes_within(over, wait):
            try:
                await self.look(time.time(), over)
            except Unavailable:
                return
            except (LedgerError, StateError, EngineError) as error:
                logger.warning("Housekeeping goes on in an hour: %s", error)
            except Exception:
                logger.exception("Housekeeping goes on in an hour.")
            wait = EVERY_S

    async def look(self, now: float, over: asyncio.Event | None = None) -> Pruned:
        """Once through all sessions, or until `over`. `now` in Unix seconds.

        Raises LedgerError, StateError, EngineError, Unavailable: it can be gone on with.
        """
        found = Pruned()
        if not self.keep:
            return found
        for record in reversed(self._register.records):
            if over is not None and over.is_set():
                return found
            found = found.plus(await self._prune(record, now))
        if found.turns or found.sessions:
            logger.info(
                "%d turns unused for long are gone, and %d sessions.", found.turns, found.sessions
            )
        await self._register.forget_copies(now - self.keep)
        await self._collect(now)
        await self._reclaim()
        return found

    async def _prune(self, record: SessionRecord, now: float) -> Pruned:
        if not await self._doomed(record, now):
            return Pruned()
        with suppress(Conflict, SessionNotFound):
            async with self._around.alone(record.name) as known:
                gone = await self._doomed(known, now)
                if known.id == record.id and gone:
                    return await self._remove(known, *gone)
        return Pruned()

    async def _doomed(self, record: SessionRecord, now: float) -> _Doomed | None:
        if exempt(record) or not self._register.is_saved(record):
            return None
        turns = await self._register.outline_of(record)
        gone = outdated(turns, record.last_used, now, self.keep)
        whole = len(gone) == len(turns)
        if whole and record.last_used >= now - self.keep:
            return None
        return (gone, whole) if gone or whole else None

    async def _remove(self, record: SessionRecord, gone: frozenset[int], whole: bool) -> Pruned:
        tree, machine = await self._register.glance(record.name), self._around.host.machine
        for numbers in batches(gone):
            PRUNED_TURNS.inc(await self._register.remove(record, numbers))
        if whole:
            await self._register.delete(record.name)
            await self._register.forget_fronts(record.owner, tree)
        self._around.removed(record, None if whole else gone)
        if machine is not None:
            async with machine.residency.lock:
                if whole:
                    await forget_lines(record, machine)
                else:
                    await forget_roots(record, _roots(tree, gone), machine)
        if (shelf := self._around.host.shelf) is not None:
            part = None if whole else gone
            await forget_stored(record, tree, self._register, shelf, part)
        return Pruned(len(gone), int(whole))

    async def _collect(self, now: float) -> None:
        """State that no turn of the ledger was made with, by a model that is gone for so long."""
        shelf = self._around.host.shelf
        if shelf is not None:
            known = await self._register.fingerprints()
            await asyncio.to_thread(shelf.store.collect, known, now - self.keep)

    async def _reclaim(self) -> None:
        for _ in range(_ROUNDS):
            if self._around.floor.running or not await self._register.reclaim(PAGES):
                return


async def _comes_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


_Doomed = tuple[frozenset[int], bool]


def _roots(tree: SessionTree, gone: Collection[int]) -> set[int]:
    """Of trees of turns that go as a whole: what goes goes with all that stands on it."""
    return {number for number in tree.children(None) if number in gone}
