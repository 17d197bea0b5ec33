"""The daemon's heart: admits turns, and brings sessions into the context and out of it again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from sessiond.errors import Conflict, EngineError, NotFound
from sessiond.metrics import UNSAVED_TURNS
from sessiond.sessions.ancestry import inheritance
from sessiond.sessions.change import fields_of
from sessiond.sessions.counting import count_tokens
from sessiond.sessions.deletion import forget_lines, forget_stored
from sessiond.sessions.explanation import Explanation, Explanations
from sessiond.sessions.floor import Floor
from sessiond.sessions.health import Counts, Loaded, health_of
from sessiond.sessions.lander import Machine
from sessiond.sessions.model_host import ModelHost
from sessiond.sessions.overview import Overview
from sessiond.sessions.register import Register
from sessiond.sessions.resumption import resume
from sessiond.sessions.retries import Retries
from sessiond.sessions.rules import Rules
from sessiond.sessions.saver import Saver
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.strangers import find_unnamed
from sessiond.sessions.text import Vocabulary
from sessiond.sessions.transcript import Content
from sessiond.sessions.turn import (
    Health,
    OpenTurn,
    ResumeReport,
    SessionChange,
    SessionSummary,
    Status,
    StoredResponse,
    TranscriptMessage,
    TurnRequest,
    TurnSummary,
    VerifyReport,
)
from sessiond.sessions.turn_task import TurnTask, Workshop

logger = logging.getLogger(__name__)
_RETRY_S = 5.0
_LOOK_S = 1.0
IDLE_S = 120.0
"""A line that was idle for so long is parked while others run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`load_wait` and `drain` in seconds; `queue` is how many turns may wait. A line that is idle
    for `park` seconds leaves the context; for None, when others need its cells or run beside it.
    """

    queue: int = 64
    load_wait: float = 600.0
    drain: float = 10.0
    park: float | None = None


class Lifecycle:
    """Implements `Turns`. Event loop only."""

    def __init__(
        self,
        register: Register,
        load: Callable[[], Awaitable[Loaded]],
        limits: Limits,
        rules: Rules | None = None,
    ) -> None:
        self._register = register
        self._limits = limits
        self._floor = Floor(limits.queue)
        self._rules = rules or Rules()
        self._explanations = Explanations()
        self._retries = Retries()
        self._overview = Overview(register, self._rules)
        self._draining = asyncio.Event()
        self._host = ModelHost(load, self._begin_chores, self._draining, limits.load_wait)
        self._stopping: asyncio.Task[None] | None = None
        self._turns: dict[asyncio.Task[None], TurnTask] = {}
        self._busy: dict[str, asyncio.Event] = {}
        self._chores: list[asyncio.Task[None]] = []

    # --- starting and stopping

    async def start(self) -> None:
        """Read the ledger and begin to load the model. Raises LedgerError."""
        await self._register.open()
        self._host.start()

    def progressed(self, share: float) -> None:
        """Of loading the model, 0.0 to 1.0. Any thread."""
        self._host.progress = share

    async def loaded(self) -> None:
        """Waits until the model is loaded. Raises what loading raised."""
        await self._host.wait()

    async def stop(self) -> None:
        """Admit nothing more, let turns end or cut them, bring everything to disk.

        A model that is loading is loaded to the end first: that cannot be interrupted. Whatever
        fails, everything is let go. May be called again: it is then the same stop.
        """
        if self._stopping is None:
            self._draining.set()
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def ready(self) -> None:
        await self._host.ready()

    # --- turns

    @property
    def model_name(self) -> str | None:
        return self._host.loaded.model if self._host.loaded else None

    async def count(self, content: Content) -> int:
        await self.ready()
        return await count_tokens(self._workshop().renderer, content)

    async def vocabulary(self) -> Vocabulary:
        await self.ready()
        return self._host.present.vocabulary

    async def open(self, request: TurnRequest) -> OpenTurn:
        self._host.refuse_if_draining()
        self._host.refuse_if_failed()
        if (same := self._retries.find(request, self._turns.values())) is not None:
            return OpenTurn(same.session, await same.events(), same.request.response_id)
        self._floor.check(self._waiting)
        name = request.session.name or await self._unnamed(request.content)
        begun = await inheritance(self._register, self._rules, name, request)
        turn = TurnTask(request, name, self._workshop, begun)
        self._retries.add(turn)
        try:
            if self._host.loaded is not None:
                await turn.decide(self._workshop())
                self._floor.check(self._waiting)
        except BaseException as error:
            turn.refuse(error)
            raise
        self._turns[self._spawn(turn.run(partial(self._ready_for, name)))] = turn
        return OpenTurn(name, await turn.events(), request.response_id)

    async def _ready_for(self, name: str) -> None:
        await self.ready()
        await self._resumed(name)

    async def _unnamed(self, content: Content) -> str:
        found = await find_unnamed(content, self._register, self._rules)
        return found or self._register.new_name()

    @property
    def _waiting(self) -> int:
        return sum(turn.waiting for turn in self._turns.values())

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._turns.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            logger.error("A task failed.", exc_info=error)

    # --- sessions

    async def summaries(self) -> list[SessionSummary]:
        return await self._overview.summaries(self._machine)

    async def summary(self, name: str) -> SessionSummary:
        return await self._summary(self._register[name])

    async def create(self, name: str, change: SessionChange) -> SessionSummary:
        record = SessionRecord.new(name, time.time(), named=True, **fields_of(change))
        await self._register.create(record)
        return await self._summary(record)

    async def update(self, name: str, change: SessionChange) -> SessionSummary:
        await self._register.change(name, **fields_of(change))
        return await self.summary(name)

    async def compact(self, name: str) -> SessionSummary:
        await self._register.change(name, may_compact=True)
        return await self.summary(name)

    async def explain(self, name: str) -> tuple[Explanation, ...]:
        return self._explanations.of(self._register[name].id)

    async def fork(self, name: str, new: str, at: int | None) -> SessionSummary:
        source = self._register[name]
        tree = await self._register.tree(name)
        now = time.time()
        turn = at if at is not None else tree.main_line(now)
        if turn is None:
            raise Conflict(f"{name!r} has no turns yet.", hint="Make a new session instead.")
        if turn not in tree:
            raise NotFound(
                f"{name!r} has no turn {turn}.", hint=f"See: sessiond show {name}", param="at"
            )
        record = replace(source.used(now), id=uuid4().hex, name=new, named=True)
        await self._register.fork(replace(record, pinned=False, may_compact=False), name, turn)
        return await self.summary(new)

    async def delete(self, name: str) -> None:
        machine = self._machine
        async with self._alone(name, "removed", needs_model=False) as record:
            tree = await self._register.tree(name)
            await self._register.delete(name)
            await self._register.forget_fronts(tree)
            self._retries.forget(name)
            if machine is not None:
                async with machine.residency.lock:
                    await forget_lines(record, machine)
        if machine is not None:
            await forget_stored(record, tree, self._register, machine)

    async def park(self, name: str) -> SessionSummary:
        async with self._alone(name, "parked") as record:
            machine = self._workshop().machine
            async with machine.residency.lock:
                for view in await machine.residency.lines_of(record.id):
                    await machine.residency.park(view)
            await machine.checkpoints.write()
        return await self._summary(record)

    async def resume(self, name: str) -> ResumeReport:
        name = self._register[name].name
        await self.ready()
        await self._resumed(name)
        self._refuse_if_running(name, "resumed")
        async with self._to_itself(name), self._floor.line(named=True):
            record = self._register[name]
            predicted = (await self._summary(record)).back_in_ms
            return await resume(record, self._workshop(), predicted)

    async def _resumed(self, name: str) -> None:
        """Waits while a session is on its way back, or out: a turn then goes on from there."""
        while name in self._busy:
            await self._busy[name].wait()

    async def turns(self, name: str) -> list[TurnSummary]:
        return await self._overview.turns(self._register[name].name)

    async def transcript(self, name: str) -> list[TranscriptMessage]:
        return await self._overview.transcript(self._register[name].name)

    async def response(self, response: str) -> StoredResponse:
        return await self._register.response(response)

    async def forget_response(self, response: str) -> None:
        await self._register.forget_response(response)
        self._retries.forget_response(response)

    async def verify(self) -> VerifyReport:
        await self.ready()
        machine = self._workshop().machine
        await machine.checkpoints.write()
        found = await asyncio.to_thread(machine.store.verify)
        return VerifyReport(
            blocks=found.blocks,
            snapshots=found.snapshots,
            bytes=found.bytes,
            damaged=found.damaged,
            missing=found.missing,
            turns=await self._register.count_turns(),
            unsaved_turns=self._register.unsaved,
        )

    async def health(self) -> Health:
        counts = Counts(
            running=self._floor.running,
            queued=self._waiting,
            sessions=len(self._register),
            unsaved=self._register.unsaved,
        )
        host = self._host
        progress = None if host.loaded else host.progress
        detail = host.failure or self._problem
        return await health_of(host.loaded, self._status(), detail, counts, progress)

    # --- inside

    @property
    def _problem(self) -> str:
        problem, count = self._register.problem, self._register.unsaved
        return f"{count} turns are not saved: {problem}" if count else ""

    def _status(self) -> Status:
        if self._draining.is_set():
            return "draining"
        if self._host.failure:
            return "failed"
        return "ok" if self._host.loaded else "loading"

    @property
    def _machine(self) -> Machine | None:
        return self._host.machine

    def _workshop(self) -> Workshop:
        loaded = self._host.present
        return Workshop(
            loaded.machine,
            loaded.renderer,
            self._register,
            self._floor,
            loaded.tokenizer,
            self._rules,
            self._explanations,
        )

    def _begin_chores(self, loaded: Loaded) -> None:
        machine = loaded.machine
        self._floor.lines = len(machine.engine.core.sequences)
        self._chores = [
            self._spawn(machine.saver.watch(lambda: self._floor.running > 0)),
            self._spawn(self._retry_unsaved()),
            self._spawn(self._park_idle(machine)),
        ]

    async def _stop(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._register.close)
            await self._end_turns()
            await self._host.settle()
            machine = self._machine
            if machine is not None:
                stack.callback(machine.store.close)
                stack.callback(machine.saver.close)
                stack.callback(machine.checkpoints.close)
                stack.push_async_callback(machine.engine.stop)
                await self._end_chores(machine.saver)
                await machine.saver.save_for_stop()
            await self._register.retry()
            if self._register.unsaved:
                logger.error("%s", self._problem)

    async def _end_chores(self, saver: Saver) -> None:
        watching, *others = self._chores
        saver.rest()
        for chore in others:
            chore.cancel()
        await asyncio.wait([watching, *others])

    async def _retry_unsaved(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            before = self._register.unsaved
            if before and not await self._register.retry():
                logger.info("%d turns that waited are saved now.", before)
            UNSAVED_TURNS.set(self._register.unsaved)

    async def _park_idle(self, machine: Machine) -> None:
        """Idle lines slow down those that run, and coming back is a read from the page cache."""
        while True:
            await asyncio.sleep(_LOOK_S)
            after = self._limits.park
            if after is None and self._floor.running:
                after = IDLE_S
            if after is not None:
                with suppress(EngineError):
                    async with machine.residency.lock:
                        await machine.residency.park_idle(after)

    async def _end_turns(self) -> None:
        """What is under way in the context ends, by itself or cut."""
        for _ in ("by itself", "cut"):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.drain):
                    while self._turns:
                        await asyncio.wait(list(self._turns))
                    for over in list(self._busy.values()):
                        await over.wait()
                    async with self._floor.landing:
                        return
            for turn in list(self._turns.values()):
                turn.cancel()

    async def _summary(self, record: SessionRecord) -> SessionSummary:
        return await self._overview.summary(record, self._machine)

    def _refuse_if_running(self, name: str, verb: str) -> None:
        turns = (turn for turn in self._turns.values() if turn.session == name)
        if name in self._busy or any(not turn.over for turn in turns):
            raise Conflict(
                f"{name!r} is running a turn and cannot be {verb}.",
                hint="Try again when it has ended.",
            )

    @asynccontextmanager
    async def _alone(
        self, name: str, verb: str, *, needs_model: bool = True
    ) -> AsyncGenerator[SessionRecord, None]:
        """No turn is under way inside. Raises SessionNotFound, Unavailable, Conflict."""
        if name not in self._register:
            self._refuse_if_running(name, verb)
        known = self._register[name]
        if needs_model:
            await self.ready()
        self._refuse_if_running(name, verb)
        async with self._to_itself(known.name):
            yield self._register[known.name]

    @asynccontextmanager
    async def _to_itself(self, name: str) -> AsyncGenerator[None, None]:
        """Turns of the session that come meanwhile wait."""
        over = self._busy[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[name]
            over.set()
