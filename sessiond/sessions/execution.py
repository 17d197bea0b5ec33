"""One turn on the engine: land on the best state there is, evaluate the rest, sample.

What cannot be restored is evaluated again, and the reason is kept. Runs under the turnstile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from sessiond.engine.context import Payload
from sessiond.engine.events import Delta, Ended, Progress, Starved
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.landing import Landing
from sessiond.engine.memory import Memory, Tokens
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.engine.sequence import Owner
from sessiond.engine.thread import Engine, RunHandle
from sessiond.errors import DecodeFailed, PoolFull, RestoreRefused, StateError
from sessiond.metrics import LANDINGS
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.sessions.plan import Plan, Resident, landed_on, plan
from sessiond.sessions.rates import Rates
from sessiond.sessions.residency import Residency
from sessiond.sessions.saver import Saver
from sessiond.store.found import Stored
from sessiond.store.loss import Rank
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
RESERVE_TOKENS = 1024
"""Cells kept free for a reply before it starts, at most; more are freed when it needs them."""
_ATTEMPTS = 8


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


@dataclass(frozen=True, slots=True)
class Outcome:
    landed: Landed
    ended: Ended


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


Places = Callable[[int], Mapping[int, int]]


def _no_places(_landing: int) -> Mapping[int, int]:
    return {}


class Execution:
    """Executes one prompt. `cancel` may come at any time, from the event loop."""

    def __init__(
        self,
        machine: Machine,
        owner: Owner,
        prompt: Tokens,
        places: Places = _no_places,
        enough: int | None = None,
    ) -> None:
        """`places` tells where to capture in a prefill that begins at a position, with ranks.

        A resident line that can be gone on with from position `enough` is not compared with what
        is stored: there is nothing more to be had.
        """
        self._machine = machine
        self._places = places
        self._enough = enough
        self._owner = owner
        self._prompt = prompt
        self._handle: RunHandle | None = None
        self._cancelled = False
        self._emitted = False

    def cancel(self) -> None:
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()

    async def run(
        self,
        sampling: Sampling,
        ending: Ending,
        logprobs: int | None,
        sink: Callable[[Progress | Delta], None],
    ) -> Outcome:
        """Raises EngineError. A failed decode is tried once more from disk if nothing was sent."""

        def forward(event: Progress | Delta) -> None:
            self._emitted = self._emitted or isinstance(event, Delta)
            if isinstance(event, Progress):
                self._machine.saver.progressed()
                self._machine.checkpoints.progressed()
            sink(event)

        for last in (False, True):
            landed = await self._land(len(self._prompt) - 1, ending)
            run = self._run_of(landed, self._prompt, sampling, ending, logprobs)
            try:
                return Outcome(landed, await self._complete(run, forward))
            except DecodeFailed:
                if last or self._emitted:
                    raise
                logger.warning("A decode failed; the turn is tried once more from disk.")
        raise AssertionError("unreachable")

    async def land_and_evaluate(self) -> Outcome:
        """Make the prompt resident and sample nothing: a resume.

        Its last token is left to the next turn, which evaluates it in any case, unless there is
        state that has it.
        """
        ending = Ending(max_tokens=0)
        landed = await self._land(len(self._prompt), ending)
        prompt = self._prompt[:-1]
        if landed.plan.position >= len(prompt):
            return Outcome(landed, Ended("length", (), "", 0, 0.0, 0.0))
        run = self._run_of(landed, prompt, Sampling(), ending, None)
        return Outcome(landed, await self._complete(run, lambda _event: None))

    # --- landing

    async def _land(self, limit: int, ending: Ending) -> Landed:
        began = time.monotonic()
        refusals = 0
        for attempt in range(_ATTEMPTS):
            chosen, stored = await self._choose(limit, use_disk=refusals == 0)
            if attempt == _ATTEMPTS - 1 or refusals > 1:
                chosen = Plan(position=0)
            landing = await self._claim(chosen, ending)
            try:
                if not chosen.in_place:
                    await self._restore(landing, chosen)
            except StateError as error:
                logger.warning("A saved state was refused (%s): %s", error.reason, error)
            except RestoreRefused as error:
                logger.warning("A restore was refused: %s", error)
                refusals += 1
            else:
                elapsed = (time.monotonic() - began) * 1e3
                self._machine.rates.restore.learn(chosen.restored_bytes, elapsed)
                reported = elapsed if chosen.needs_restore else 0.0
                LANDINGS.labels(landed_on(chosen)).inc()
                return Landed(chosen, stored, landing.seq, reported, refusals > 0)
        raise AssertionError("the last attempt restores nothing")

    async def _choose(self, limit: int, use_disk: bool) -> tuple[Plan, Stored]:
        """The best plan; what waits in the engine is collected only if it could help."""
        machine, prompt = self._machine, self._prompt
        residents = await machine.residency.residents(self._owner.session)
        chosen = self._plan(limit, residents, Stored())
        if self._enough and chosen.in_place and chosen.position >= self._enough:
            return chosen, Stored()
        stored = await self._lookup(prompt) if use_disk else Stored()
        chosen = self._plan(limit, residents, stored)
        if machine.memory.needs_snapshot and not chosen.in_place:
            await machine.checkpoints.collect()
            chosen = self._plan(limit, residents, stored)
        return chosen, stored

    def _plan(self, limit: int, residents: list[Resident], stored: Stored) -> Plan:
        machine = self._machine
        ready = {snapshot.key: snapshot for snapshot in stored.snapshots}
        ready |= {snapshot.key: snapshot for snapshot in machine.checkpoints.find(self._prompt)}
        snapshots = sorted(ready.values(), key=lambda snapshot: snapshot.position)
        everything = replace(stored, snapshots=tuple(snapshots))
        whole = machine.saver.whole
        return plan(self._prompt, limit, residents, everything, machine.memory, whole=whole)

    async def _lookup(self, tokens: Tokens) -> Stored:
        try:
            return await asyncio.to_thread(self._machine.store.lookup, tokens)
        except StateError as error:
            logger.warning("The store cannot be read: %s", error)
            return Stored()

    async def _claim(self, chosen: Plan, ending: Ending) -> Landing:
        room = self._machine.limit - len(self._prompt)
        wanted = room if ending.max_tokens is None else min(ending.max_tokens, room)
        cells = len(self._prompt) - chosen.keep + max(0, min(wanted, RESERVE_TOKENS))
        return await self._machine.residency.claim(chosen, self._owner, cells)

    async def _restore(self, landing: Landing, chosen: Plan) -> None:
        machine = self._machine
        in_memory = chosen.snapshot.key if chosen.snapshot and not chosen.snapshot.bytes else None
        keys = [key for key in landing.keys if key != in_memory]
        payloads = self._payloads(keys, in_memory)
        with machine.store.lease(keys), closing(payloads):
            await machine.engine.restore(landing, self._prompt, payloads)
        if keys:
            await asyncio.to_thread(machine.store.touch, keys)

    def _payloads(self, keys: list[str], in_memory: str | None) -> Generator[Payload, None, None]:
        """What `keys` name, read ahead from disk, then the snapshot in memory if there is one."""
        stored = self._machine.store.stream(keys)
        try:
            yield from stored
        finally:
            close = getattr(stored, "close", None)
            if close:
                close()
        if in_memory is not None:
            with self._machine.checkpoints.lease(in_memory, self._owner) as payload:
                yield payload

    # --- evaluation

    def _run_of(
        self,
        landed: Landed,
        prompt: Tokens,
        sampling: Sampling,
        ending: Ending,
        logprobs: int | None,
    ) -> Run:
        captures = self._machine.memory.needs_snapshot and not self._machine.saver.whole
        position = landed.plan.position
        ranks = self._places(position) if captures else {}
        return Run(
            seq=landed.seq,
            prompt=prompt,
            start=position,
            limit=self._machine.limit,
            sampling=sampling,
            ending=ending,
            captures=tuple(sorted(at for at in ranks if position < at < len(prompt))),
            capture_end=captures,
            ranks=ranks,
            end_rank=Rank.END,
            logprobs=logprobs,
        )

    async def _complete(self, run: Run, sink: Callable[[Progress | Delta], None]) -> Ended:
        machine = self._machine
        self._handle = await machine.engine.run(run, sink)
        if self._cancelled:
            self._handle.cancel()
        while True:
            event = await self._handle.wait()
            if isinstance(event, Ended):
                machine.rates.prefill.learn(event.prefilled, event.prefill_ms)
                return event
            await self._feed(run, event)

    async def _feed(self, run: Run, _starved: Starved) -> None:
        """Free cells for a run that found none, or end it with what it has."""
        machine = self._machine
        if await machine.residency.park_one({run.seq}):
            await machine.engine.go_on(run.seq)
        elif self._emitted:
            await machine.engine.finish(run.seq, "length")
        else:
            await machine.engine.finish(run.seq, "cancelled")
            raise PoolFull("The prompt does not fit beside the lines that are running.")
