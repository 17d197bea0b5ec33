"""The daemon's heart: admits turns, and brings sessions into the context and out of it again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from sessiond.errors import Conflict
from sessiond.sessions.anatomy import Anatomist, Anatomy
from sessiond.sessions.ancestry import inheritance
from sessiond.sessions.change import fields_of
from sessiond.sessions.chores import Chores
from sessiond.sessions.counting import count_tokens
from sessiond.sessions.deletion import forget_lines, forget_stored
from sessiond.sessions.explanation import Explanation, Explanations
from sessiond.sessions.floor import Floor
from sessiond.sessions.forking import fork_session
from sessiond.sessions.gauges import Gauges, gauges_of
from sessiond.sessions.health import Counts, Glance, Loaded, health_of
from sessiond.sessions.history import History, HistoryReport
from sessiond.sessions.lander import Machine
from sessiond.sessions.limits import Limits
from sessiond.sessions.model_host import ModelHost, let_go
from sessiond.sessions.naming import called
from sessiond.sessions.overview import Overview
from sessiond.sessions.pins import Pins
from sessiond.sessions.pruning import Pruner, Surroundings
from sessiond.sessions.register import Register
from sessiond.sessions.resumption import resume
from sessiond.sessions.retries import Retries
from sessiond.sessions.rules import Rules
from sessiond.sessions.saver import Flushed
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.stopping import Stopping, StopReport
from sessiond.sessions.strangers import find_unnamed
from sessiond.sessions.text import Served, Vocabulary
from sessiond.sessions.transcript import Content
from sessiond.sessions.transfer.desk import Desk
from sessiond.sessions.transfer.exporting import Exported
from sessiond.sessions.transfer.importing import Naming
from sessiond.sessions.transfer.report import ImportReport
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
from sessiond.sessions.verifying import verify
from sessiond.sessions.warming import Warming
from sessiond.store.store import Store

logger = logging.getLogger(__name__)


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
        self._history = History(time.time())
        self._anatomist = Anatomist(register)
        self._draining = asyncio.Event()
        self._host = host = ModelHost(
            load, self._begin_chores, self._let_go, self._draining, limits.load_wait
        )
        self._warming = Warming(
            register,
            lambda: self._limits.warm,
            lambda known: self._overview.summary(known, host.shelf),
        )
        self._chores = Chores(
            register, self._floor, lambda: self._limits, self._spawn, self._host.calm
        )
        self._stopping: asyncio.Task[StopReport] | None = None
        self._turns: dict[asyncio.Task[None], TurnTask] = {}
        self._busy: dict[str, asyncio.Event] = {}
        self._pins = Pins(register, lambda: self.store)
        self._end = Stopping(register, host, self._floor, self._turns, self._busy, self._pins)
        alone = partial(self._alone, verb="pruned", needs_model=False)
        around = Surroundings(self._host, self._floor, alone, self._overview, self._retries)
        self.pruner = Pruner(register, around, limits.keep)
        alone_as, free = self._new_to_itself, lambda: self._limits.keep_free
        self._desk = Desk(register, self._host, self._model, alone_as, self._summary, free)

    # --- starting and stopping

    async def start(self) -> None:
        """Read the ledger and begin to load the model. Raises LedgerError."""
        self._desk.clear()
        await self._register.open()
        self._housekeeping = self._spawn(self.pruner.watch(self._draining))
        self._pins.start(self._spawn, self._host.calm)
        self._host.start()

    def progressed(self, share: float) -> None:
        """Of loading the model, 0.0 to 1.0. Any thread."""
        self._host.progress = share

    async def loaded(self) -> None:
        """Waits until the model is loaded. Raises what loading raised."""
        await self._host.wait()

    async def stop(self) -> StopReport:
        """Admit nothing more, let turns end or cut them, bring everything to disk.

        As `Stopping.run` has it. May be called again: it is then the same stop.
        """
        if self._stopping is None:
            self._draining.set()
            ending = self._end.run(self._limits.drain, self._let_go)
            self._stopping = asyncio.create_task(ending)
        return await asyncio.shield(self._stopping)

    def glance(self) -> Glance:
        """How it is, at no cost."""
        engine = self._machine.engine if self._machine else None
        return Glance(
            status=self._status(),
            model=self.model_name,
            counts=self._counts(),
            silence=engine.silence if engine else 0.0,
            done=(self._host.progress, self._end.done, engine and engine.beats),
            loading=self._host.progress,
        )

    @property
    def store(self) -> Store | None:
        """None until the model was loaded for the first time."""
        return self._host.shelf.store if self._host.shelf else None

    def apply(self, limits: Limits, rules: Rules) -> None:
        """From now on. What runs already goes on."""
        self._limits, self._rules = limits, rules
        self._floor.capacity = limits.queue
        self._host.load_wait = limits.load_wait
        self._host.calm.stir()
        self._overview.rules = rules
        self.pruner.keep = limits.keep

    async def resize(self, limits: Callable[[int], tuple[int, int]]) -> None:
        """As `Pins` has it. There may be room then for what there was none."""
        await self._pins.resize(limits)
        self._warming.has_room()
        self._host.calm.stir()

    async def ready(self) -> None:
        await self._host.ready()

    # --- turns

    @property
    def model_name(self) -> str | None:
        return self._host.facts.served.model if self._host.facts else None

    async def served(self) -> Served:
        return await self._host.served()

    async def count(self, content: Content) -> int:
        async with self._model() as loaded:
            return await count_tokens(loaded.renderer, content)

    async def vocabulary(self) -> Vocabulary:
        async with self._model() as loaded:
            return loaded.vocabulary

    @asynccontextmanager
    async def _model(self) -> AsyncGenerator[Loaded, None]:
        """Loaded if need be, kept, and with nothing to do for itself inside. Raises Unavailable."""
        self._warming.interrupt()
        with self._host.using():
            await self._host.ready()
            await self._warming.interrupted()
            yield self._host.present

    async def open(self, request: TurnRequest) -> OpenTurn:
        self._warming.interrupt()
        with self._host.using():
            return await self._open(request)

    async def _open(self, request: TurnRequest) -> OpenTurn:
        self._host.refuse_if_draining()
        self._host.refuse_if_failed()
        if (same := self._retries.find(request, self._turns.values())) is not None:
            return OpenTurn(same.session, await same.events(), same.request.response_id)
        self._floor.check(self._waiting)
        name = request.session.name or await self._unnamed(request)
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
        await self._warming.interrupted()
        await self._resumed(name)

    async def _unnamed(self, request: TurnRequest) -> str:
        owner, content = request.session.owner, request.content
        found = await find_unnamed(owner, content, self._register, self._rules)
        return found or self._register.new_name(owner)

    @property
    def _waiting(self) -> int:
        return sum(turn.waiting for turn in self._turns.values())

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._turns.pop(task, None) is not None:
            self._host.used()
        if not task.cancelled() and (error := task.exception()):
            logger.error("A task failed.", exc_info=error)

    # --- sessions

    async def summaries(self) -> list[SessionSummary]:
        shelf = self._host.shelf
        return self._warming.told(await self._overview.summaries(shelf), shelf)

    async def summary(self, name: str) -> SessionSummary:
        return await self._summary(self._register[name])

    async def create(self, name: str, change: SessionChange) -> SessionSummary:
        record = SessionRecord.new(name, time.time(), named=True, **fields_of(change))
        await self._register.create(record)
        return await self._summary(record)

    async def update(self, name: str, change: SessionChange) -> SessionSummary:
        fields = fields_of(change)
        self._host.calm.stir()
        if change.name in (None, name):
            await self._register.change(name, **fields)
            await self._pins.told()
            return await self.summary(name)
        return await self._rename(name, str(change.name), fields)

    async def _rename(self, name: str, new: str, fields: dict[str, Any]) -> SessionSummary:
        async with self._alone(name, "renamed", needs_model=False):
            async with self._new_to_itself(new):
                await self._register.rename(name, new, **fields)
            self._retries.forget(name)
        await self._pins.told()
        return await self.summary(new)

    async def compact(self, name: str) -> SessionSummary:
        await self._register.change(name, may_compact=True)
        return await self.summary(name)

    async def explain(self, name: str) -> tuple[Explanation, ...]:
        return self._explanations.of(self._register[name].id)

    async def fork(self, name: str, new: str, at: int | None) -> SessionSummary:
        await fork_session(self._register, name, new, at)
        return await self.summary(new)

    async def export(self, name: str, *, state: bool) -> Exported:
        return await self._desk.export(name, state=state)

    async def import_session(
        self,
        file: AsyncIterator[bytes],
        name: str | None,
        naming: Naming,
        *,
        state: bool,
        trusted: bool = True,
        size: int = 0,
    ) -> ImportReport:
        return await self._desk.import_session(
            file, name, naming, state=state, trusted=trusted, size=size
        )

    async def delete(self, name: str) -> None:
        await self._host.unloaded()
        machine, shelf = self._machine, self._host.shelf
        async with self._alone(name, "removed", needs_model=False) as record:
            tree = await self._register.tree(name)
            await self._register.delete(name)
            await self._register.forget_fronts(record.owner, tree)
            self._retries.forget(name)
            if machine is not None:
                async with machine.residency.lock:
                    await forget_lines(record, machine)
        if shelf is not None:
            await forget_stored(record, tree, self._register, shelf)

    async def park(self, name: str) -> SessionSummary:
        await self._host.unloaded()
        needed = self._host.status != "unloaded"
        async with self._alone(name, "parked", needs_model=needed) as record:
            if (machine := self._machine) is not None:
                async with machine.residency.lock:
                    for view in await machine.residency.lines_of(record.id):
                        await machine.residency.park(view)
                await machine.checkpoints.write()
        return await self._summary(record)

    async def resume(self, name: str) -> ResumeReport:
        name = self._register[name].name
        async with self._model():
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

    async def anatomy(self, name: str) -> Anatomy:
        return await self._anatomist.look(name, self._host.shelf, self._host.loaded)

    async def history(self, owner: str | None = None) -> HistoryReport:
        return self._history.report(time.time(), self._register.records, owner)

    async def gauges(self) -> Gauges:
        return await gauges_of(self._machine, self._limits.queue)

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
        await self._host.served()
        with self._host.using():
            if (machine := self._machine) is not None:
                await machine.checkpoints.write()
            return await verify(self._host.known.store, self._register)

    async def health(self) -> Health:
        detail = self._host.failure or self._problem
        counts, warmth = self._counts(), self._warming.warmth
        return await health_of(self._host, self._status(), detail, counts, warmth)

    # --- inside

    @property
    def _problem(self) -> str:
        shelved = self.store.trouble if self.store else ""
        return " ".join(filter(None, (self._register.problem, shelved)))

    def _counts(self) -> Counts:
        return Counts(
            running=self._floor.running,
            queued=self._waiting,
            sessions=len(self._register),
            unsaved=self._register.unsaved,
        )

    def _status(self) -> Status:
        return "draining" if self._draining.is_set() else self._host.status

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
            self._history,
        )

    def _begin_chores(self, loaded: Loaded) -> None:
        machine = loaded.machine
        self._floor.lines = len(machine.engine.core.sequences)
        host, warming, in_use = self._host, self._warming, self._in_use
        warming.begin(machine.fingerprint.value)
        self._chores.begin(
            machine,
            lambda: self._floor.running > 0 or warming.active,
            host.unload_when_idle(lambda: self._limits.unload_after, in_use),
            warming.watch(
                self._workshop, lambda: host.idle_s(in_use), self._limits.warm_after, host.calm
            ),
        )

    def _in_use(self) -> bool:
        """Whether anything has to do with the model, waits for it, or would be lost with it."""
        under_way = self._turns or self._busy or self._floor.running or self._register.unsaved
        saver = self._machine.saver if self._machine else None
        saving = saver is not None and (saver.busy or saver.behind)
        return bool(under_way) or saving or self._floor.landing.locked()

    async def _let_go(self, machine: Machine, step: Callable[[], None] = lambda: None) -> Flushed:
        """Everything of it is saved and freed, but the store."""
        return await let_go(machine, self._chores.end, step)

    async def _summary(self, record: SessionRecord) -> SessionSummary:
        shelf = self._host.shelf
        return self._warming.told([await self._overview.summary(record, shelf)], shelf)[0]

    def _refuse_if_running(self, name: str, verb: str) -> None:
        turns = (turn for turn in self._turns.values() if turn.session == name)
        if name in self._busy or any(not turn.over for turn in turns):
            raise Conflict(
                f"{called(name)!r} is running a turn and cannot be {verb}.",
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
        self._warming.interrupt()
        await self._warming.interrupted()
        if needs_model:
            await self.ready()
        self._host.refuse_if_draining()
        self._refuse_if_running(name, verb)
        async with self._to_itself(known.name):
            yield self._register[known.name]

    @asynccontextmanager
    async def _new_to_itself(self, name: str) -> AsyncGenerator[None, None]:
        """For a session that comes under a name: turns for it wait. Raises Conflict."""
        self._register.refuse_taken(name)
        self._refuse_if_running(name, "made")
        async with self._to_itself(name):
            yield

    @asynccontextmanager
    async def _to_itself(self, name: str) -> AsyncGenerator[None, None]:
        """Turns of the session that come meanwhile wait."""
        over = self._busy[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[name]
            over.set()
            self._host.used()
