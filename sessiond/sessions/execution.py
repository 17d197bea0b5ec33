"""One turn on the engine: land on the best state there is, evaluate the rest, sample.

What cannot be restored is evaluated again, and the reason is kept. Runs under the turnstile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace

from sessiond.engine.context import Payload
from sessiond.engine.core import Capture
from sessiond.engine.events import Delta, Ended, Progress, Starved
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.landing import Landing
from sessiond.engine.memory import Memory, Tokens
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.engine.sequence import Owner
from sessiond.engine.thread import Engine, RunHandle
from sessiond.errors import DecodeFailed, PoolFull, RestoreRefused, StateError
from sessiond.sessions.plan import Plan, Resident, plan
from sessiond.sessions.rates import Rates
from sessiond.sessions.residency import Residency
from sessiond.sessions.saver import Saver
from sessiond.store.found import Stored
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
    residency: Residency
    memory: Memory
    fingerprint: Fingerprint
    rates: Rates
    limit: int
    """The most tokens of one line."""


class Execution:
    """Executes one prompt. `cancel` may come at any time, from the event loop."""

    def __init__(self, machine: Machine, owner: Owner, prompt: Tokens) -> None:
        self._machine = machine
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
            chosen, stored, captures = await self._choose(limit, use_disk=refusals == 0)
            if attempt == _ATTEMPTS - 1 or refusals > 1:
                chosen = Plan(position=0)
            landing = await self._claim(chosen, ending)
            try:
                if not chosen.in_place:
                    await self._restore(landing, captures)
            except StateError as error:
                logger.warning("A saved state was refused (%s): %s", error.reason, error)
            except RestoreRefused as error:
                logger.warning("A restore was refused: %s", error)
                refusals += 1
            else:
                elapsed = (time.monotonic() - began) * 1e3
                self._machine.rates.restore.learn(chosen.restored_bytes, elapsed)
                reported = elapsed if chosen.needs_restore else 0.0
                return Landed(chosen, stored, landing.seq, reported, refusals > 0)
        raise AssertionError("the last attempt restores nothing")

    async def _choose(self, limit: int, use_disk: bool) -> tuple[Plan, Stored, dict[str, Capture]]:
        """The best plan; what waits in the engine is collected only if it could help."""
        machine, prompt = self._machine, self._prompt
        residents = await machine.residency.residents(self._owner.session)
        stored = await self._lookup(prompt) if use_disk else Stored()
        chosen, captures = self._plan(limit, residents, stored)
        if machine.memory.needs_snapshot and not chosen.in_place:
            await machine.saver.collect()
            chosen, captures = self._plan(limit, residents, stored)
        return chosen, stored, captures

    def _plan(
        self, limit: int, residents: list[Resident], stored: Stored
    ) -> tuple[Plan, dict[str, Capture]]:
        waiting = self._machine.saver.captures_for(self._prompt)
        snapshots = sorted(
            [*stored.snapshots, *(snapshot for snapshot, _ in waiting)],
            key=lambda snapshot: snapshot.position,
        )
        everything = replace(stored, snapshots=tuple(snapshots))
        machine = self._machine
        chosen = plan(
            self._prompt, limit, residents, everything, machine.memory, whole=machine.saver.whole
        )
        return chosen, {snapshot.key: capture for snapshot, capture in waiting}

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

    async def _restore(self, landing: Landing, captures: dict[str, Capture]) -> None:
        keys = [key for key in landing.keys if key not in captures]
        store, tokens = self._machine.store, self._prompt
        with store.lease(keys), closing(_payloads(store, landing.keys, captures)) as payloads:
            await self._machine.engine.restore(landing, tokens, payloads)
        if keys:
            await asyncio.to_thread(store.touch, keys)

    # --- evaluation

    def _run_of(
        self,
        landed: Landed,
        prompt: Tokens,
        sampling: Sampling,
        ending: Ending,
        logprobs: int | None,
    ) -> Run:
        memory, last = self._machine.memory, len(prompt) - 1
        captures = memory.needs_snapshot and not self._machine.saver.whole
        answers = ending.max_tokens != 0
        return Run(
            seq=landed.seq,
            prompt=prompt,
            start=landed.plan.position,
            limit=self._machine.limit,
            sampling=sampling,
            ending=ending,
            captures=(last,) if captures and answers and last > landed.plan.position else (),
            capture_end=captures,
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


def _payloads(
    store: Store, keys: tuple[str, ...], captures: dict[str, Capture]
) -> Generator[Payload, None, None]:
    """Payloads in the order of `keys`: captures from memory, the rest read ahead from disk."""
    stored = store.stream([key for key in keys if key not in captures])
    try:
        for key in keys:
            yield captures[key].payload if key in captures else next(stored)
    finally:
        close = getattr(stored, "close", None)
        if close:
            close()
