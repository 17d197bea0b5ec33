"""Lands a prompt: the best state there is, brought into a sequence that has room for the rest.

What cannot be restored is left to be evaluated again, and the reason is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

from sessiond.elapsed import ms_since
from sessiond.engine.active import RESERVE_TOKENS
from sessiond.engine.context import Payload
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.landing import Landing
from sessiond.engine.memory import Memory, Tokens
from sessiond.engine.sampling import Ending
from sessiond.engine.sequence import Owner
from sessiond.engine.thread import Engine
from sessiond.errors import RestoreRefused, StateError
from sessiond.metrics import LANDINGS
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.sessions.plan import Plan, Resident, landed_on, plan
from sessiond.sessions.rates import Rates
from sessiond.sessions.residency import Residency
from sessiond.sessions.saver import Saver
from sessiond.sessions.shelf import Shelf
from sessiond.store.found import Stored
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Machine:
    """What executing a turn needs; made once when the model is loaded."""

    engine: Engine
    store: Store
    saver: Saver
    checkpoints: Checkpoints
    residency: Residency
    memory: Memory
    fingerprint: Fingerprint
    rates: Rates
    limit: int
    """The most tokens of one line."""

    @property
    def shelf(self) -> Shelf:
        return Shelf(
            self.store, self.memory, self.fingerprint, self.rates, self.saver.whole, self.engine
        )


@dataclass(frozen=True, slots=True)
class Landed:
    """Where a prompt's evaluation began and how its state got there.

    `refused`: there was saved state, and llama.cpp did not accept it.
    """

    plan: Plan
    stored: Stored
    seq: int
    restore_ms: float
    refused: bool


class Lander:
    """For one line. Event loop only, under the lock of `residency`."""

    def __init__(self, machine: Machine, owner: Owner) -> None:
        self._machine = machine
        self._owner = owner
        self._store = machine.store.of(owner.whose)

    async def land(
        self, prompt: Tokens, limit: int, ending: Ending, enough: int | None = None
    ) -> Landed:
        """Bring a beginning of `prompt` into a sequence, `limit` tokens of it at most.

        A resident line that can be gone on with from position `enough` is not compared with what
        is stored: there is nothing more to be had. Raises PoolFull where running lines need the
        cells; nothing was claimed then.
        """
        began = time.monotonic()
        refusals = 0
        for attempt in range(_ATTEMPTS):
            enough = enough if refusals == 0 else None
            chosen, stored = await self._choose(prompt, limit, enough, use_disk=refusals == 0)
            if attempt == _ATTEMPTS - 1 or refusals > 1:
                chosen = Plan(position=0)
            landing = await self._claim(prompt, chosen, ending)
            try:
                if not chosen.in_place:
                    await self._restore(landing, prompt, chosen)
            except StateError as error:
                logger.warning("A saved state was refused (%s): %s", error.reason, error)
            except RestoreRefused as error:
                await self._machine.residency.expect_cells(len(prompt) - chosen.keep)
                logger.warning("A restore was refused: %s", error)
                refusals += 1
            else:
                elapsed = ms_since(began)
                self._machine.rates.restore.learn(chosen.restored_bytes, elapsed)
                reported = elapsed if chosen.needs_restore else 0.0
                LANDINGS.labels(landed_on(chosen)).inc()
                return Landed(chosen, stored, landing.seq, reported, refusals > 0)
        raise AssertionError("the last attempt restores nothing")

    async def _choose(
        self, prompt: Tokens, limit: int, enough: int | None, use_disk: bool
    ) -> tuple[Plan, Stored]:
        """The best plan; what waits in the engine is collected only if it could help."""
        machine = self._machine
        residents = await machine.residency.residents(self._owner)
        chosen = self._plan(prompt, limit, residents, Stored())
        snapshots, checkpoints = machine.memory.needs_snapshot, machine.checkpoints
        waiting = snapshots and checkpoints.awaits(self._owner, prompt, chosen.position)
        if enough and chosen.in_place and chosen.position >= enough and not waiting:
            return chosen, Stored()
        stored = await self._lookup(prompt) if use_disk else Stored()
        chosen = self._plan(prompt, limit, residents, stored)
        if waiting or (snapshots and not chosen.in_place):
            await checkpoints.collect()
            chosen = self._plan(prompt, limit, residents, stored)
        return chosen, stored

    def _plan(self, prompt: Tokens, limit: int, residents: list[Resident], stored: Stored) -> Plan:
        machine = self._machine
        ready = {snapshot.key: snapshot for snapshot in stored.snapshots}
        ready |= {
            snapshot.key: snapshot for snapshot in machine.checkpoints.find(self._owner, prompt)
        }
        snapshots = sorted(ready.values(), key=lambda snapshot: snapshot.position)
        everything = replace(stored, snapshots=tuple(snapshots))
        whole = machine.saver.whole
        return plan(prompt, limit, residents, everything, machine.memory, whole=whole)

    async def _lookup(self, tokens: Tokens) -> Stored:
        try:
            return await asyncio.to_thread(self._store.lookup, tokens)
        except StateError as error:
            logger.warning("The store cannot be read: %s", error)
            return Stored()

    async def _claim(self, prompt: Tokens, chosen: Plan, ending: Ending) -> Landing:
        room = self._machine.limit - len(prompt)
        wanted = room if ending.max_tokens is None else min(ending.max_tokens, room)
        cells = len(prompt) - chosen.keep + max(0, min(wanted, RESERVE_TOKENS))
        return await self._machine.residency.claim(chosen, self._owner, cells)

    async def _restore(self, landing: Landing, prompt: Tokens, chosen: Plan) -> None:
        machine = self._machine
        in_memory = chosen.snapshot.key if chosen.snapshot and not chosen.snapshot.bytes else None
        keys = [key for key in landing.keys if key != in_memory]
        payloads = self._payloads(keys, in_memory)
        with self._store.lease(keys), closing(payloads):
            await machine.engine.restore(landing, prompt, payloads)
        if keys:
            await asyncio.to_thread(self._store.touch, keys)

    def _payloads(self, keys: list[str], in_memory: str | None) -> Generator[Payload, None, None]:
        """What `keys` name, read ahead from disk, then the snapshot in memory if there is one."""
        stored = self._store.stream(keys)
        try:
            yield from stored
        finally:
            close = getattr(stored, "close", None)
            if close:
                close()
        if in_memory is not None:
            with self._machine.checkpoints.lease(in_memory, self._owner) as payload:
                yield payload
