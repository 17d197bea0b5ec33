"""One turn on the engine: land, evaluate the rest, sample; and again where it lost its cells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from sessiond.engine.constraint import Constraint
from sessiond.engine.events import Delta, Ended, Progress
from sessiond.engine.memory import Tokens
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.engine.sequence import Owner
from sessiond.engine.thread import RunHandle
from sessiond.errors import DecodeFailed, EngineError, PoolFull, Unavailable
from sessiond.metrics import SUSPENDED
from sessiond.sessions.floor import Floor
from sessiond.sessions.lander import Landed, Lander, Machine
from sessiond.store.loss import Rank

logger = logging.getLogger(__name__)
Places = Callable[[int], Mapping[int, int]]
Sink = Callable[[Progress | Delta], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a reply is sampled. As `Run` has them."""

    sampling: Sampling
    ending: Ending
    logprobs: int | None = None
    shown: frozenset[int] = frozenset()
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`landed` is where the evaluation of the prompt began, the first time."""

    landed: Landed
    ended: Ended


def _no_places(_landing: int) -> Mapping[int, int]:
    return {}


class Execution:
    """Executes one prompt. `cancel` may come at any time, from the event loop."""

    def __init__(
        self,
        machine: Machine,
        floor: Floor,
        owner: Owner,
        prompt: Tokens,
        places: Places = _no_places,
        enough: int | None = None,
    ) -> None:
        """`places` tells where to capture in a prefill that begins at a position, with ranks.
        `enough`: as `Lander.land` has it.
        """
        self._machine = machine
        self._floor = floor
        self._places = places
        self._enough = enough
        self._prompt = prompt
        self._lander = Lander(machine, owner)
        self._handle: RunHandle | None = None
        self._left = asyncio.Event()
        self._failed = False
        self._emitted = False
        self._starved_at = -1

    def cancel(self) -> None:
        self._left.set()
        if self._handle is not None:
            self._handle.cancel()

    async def run(self, wanted: Wanted, sink: Sink) -> Outcome:
        """Raises EngineError, or InvalidRequest for a constraint that grew out of bounds. After a
        failed decode it goes on once from disk.
        """

        def forward(event: Progress | Delta) -> None:
            self._emitted = self._emitted or isinstance(event, Delta)
            if isinstance(event, Progress):
                self._machine.saver.progressed()
                self._machine.checkpoints.progressed()
            sink(event)

        ending = wanted.ending
        async with self._floor.landing:
            landed = await self._land(self._prompt, len(self._prompt) - 1, ending, self._enough)
            try:
                if self._left.is_set():
                    raise Unavailable("The turn was cancelled before it began.")
                run = self._run_of(landed, self._prompt, wanted)
                self._handle = await self._machine.engine.run(run, forward)
            finally:
                self._machine.residency.lock.release()
        if self._left.is_set():
            self._handle.cancel()
        return Outcome(landed, await self._complete(self._handle, ending))

    async def land_and_evaluate(self) -> Outcome:
        """Make the prompt resident and sample nothing: a resume.

        Its last token is left to the next turn, which evaluates it in any case, unless there is
        state that has it. Raises Unavailable where it was cancelled before it began.
        """
        ending, prompt = Ending(max_tokens=0), self._prompt[:-1]
        async with self._floor.landing:
            landed = await self._unless_left(self._land(self._prompt, len(self._prompt), ending))
            try:
                if landed.plan.position >= len(prompt):
                    return Outcome(landed, Ended("length", (), "", 0, 0.0, 0.0))
                run = self._run_of(landed, prompt, Wanted(Sampling(), ending))
                self._handle = await self._machine.engine.run(run, lambda _event: None)
            finally:
                self._machine.residency.lock.release()
        if self._left.is_set():
            self._handle.cancel()
        return Outcome(landed, await self._complete(self._handle, ending))

    # --- inside

    async def _land(
        self, prompt: Tokens, limit: int, ending: Ending, enough: int | None = None
    ) -> Landed:
        """With the landing lock; the lock of `residency` is held when it returns.

        Where running lines need the cells it waits until one of them leaves.
        """
        lock = self._machine.residency.lock
        while True:
            await lock.acquire()
            seen = self._floor.changes
            try:
                return await self._lander.land(prompt, limit, ending, enough)
            except PoolFull:
                lock.release()
            except BaseException:
                lock.release()
                raise
            await self._change(seen)
            if self._left.is_set():
                raise Unavailable("The turn was cancelled while it waited.")

    async def _unless_left(self, landing: Coroutine[Any, Any, Landed]) -> Landed:
        """Whoever leaves does not wait for a restore."""
        landed = asyncio.create_task(landing)
        left = asyncio.create_task(self._left.wait())
        try:
            await asyncio.wait({landed, left}, return_when=asyncio.FIRST_COMPLETED)
            if not landed.done():
                raise Unavailable("The session was not wanted any more.")
            return landed.result()
        finally:
            landed.cancel()
            left.cancel()
            await asyncio.gather(landed, left, return_exceptions=True)

    async def _change(self, seen: int) -> None:
        """A line has left since `seen`, or this one's client has gone."""
        waits = [
            asyncio.ensure_future(self._floor.change(seen)),
            asyncio.ensure_future(self._left.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _run_of(self, landed: Landed, prompt: Tokens, wanted: Wanted) -> Run:
        captures = self._machine.memory.needs_snapshot and not self._machine.saver.whole
        position = landed.plan.position
        ranks = self._places(position) if captures else {}
        return Run(
            seq=landed.seq,
            prompt=prompt,
            start=position,
            limit=self._machine.limit,
            sampling=wanted.sampling,
            ending=wanted.ending,
            captures=tuple(sorted(at for at in ranks if position < at < len(prompt))),
            capture_end=captures,
            ranks=ranks,
            end_rank=Rank.END,
            logprobs=wanted.logprobs,
            shown=wanted.shown,
            constraint=wanted.constraint,
        )

    async def _complete(self, handle: RunHandle, ending: Ending) -> Ended:
        machine = self._machine
        while True:
            try:
                event = await handle.wait()
            except DecodeFailed:
                if self._failed:
                    await machine.engine.close_run(handle)
                    raise
                self._failed = True
                logger.warning("A decode failed; the turn goes on from what is saved.")
                self._floor.left()
                await self._go_on(handle, ending)
                continue
            if isinstance(event, Ended):
                machine.rates.prefill.learn(event.prefilled, event.prefill_ms)
                return event
            await self._feed(handle, ending)

    async def _feed(self, handle: RunHandle, ending: Ending) -> None:
        """Cells for a run that found none: those of an idle line, else it waits for a running one
        to leave. Alone in the context, it ends with what it has.
        """
        machine = self._machine
        async with machine.residency.lock:
            views = {view.seq: view for view in await machine.engine.views()}
            own = views.pop(handle.seq)
            if await machine.residency.park_one({own.seq}):
                await machine.engine.go_on(handle)
                return
            if not any(view.running for view in views.values()):
                if self._starved_at != len(own.tokens):  # those that took its cells have left
                    self._starved_at = len(own.tokens)
                    await machine.engine.go_on(handle)
                    return
                await machine.engine.finish(handle, "length")
                if not self._emitted:
                    raise PoolFull("The prompt does not fit into the context.")
                return
            if not await machine.engine.suspend(handle):
                return
            SUSPENDED.inc()
            now = await machine.engine.views()
            await machine.residency.park(next(view for view in now if view.seq == own.seq))
        self._floor.left()
        await self._go_on(handle, ending)

    async def _go_on(self, handle: RunHandle, ending: Ending) -> None:
        """A run without a sequence gets one again, and its state."""
        machine = self._machine
        line, sampled = await machine.engine.known(handle)
        limit = len(line) if sampled else len(line) - 1
        try:
            async with self._floor.landing:
                landed = await self._land(line, limit, ending)
                try:
                    await machine.engine.resume(handle, landed.seq)
                finally:
                    machine.residency.lock.release()
        except Unavailable:
            await machine.engine.close_run(handle, "cancelled")
        except EngineError:
            await machine.engine.close_run(handle)
            raise
