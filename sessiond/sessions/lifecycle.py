"""The daemon's heart: admits turns, and brings sessions into the context and out of it again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sessiond.engine.probe import Verdict
from sessiond.engine.sequence import Owner
from sessiond.errors import Conflict, SessiondError, Unavailable
from sessiond.metrics import CAPTURE_MS, CAPTURES, UNSAVED_TURNS
from sessiond.sessions.composition import resumed
from sessiond.sessions.execution import Execution, Machine
from sessiond.sessions.miss import find_miss
from sessiond.sessions.overview import Overview
from sessiond.sessions.plan import source_of
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import Chat
from sessiond.sessions.turn import (
    Health,
    OpenTurn,
    ResumeReport,
    SessionRef,
    SessionSummary,
    TranscriptMessage,
    TurnRequest,
    TurnSummary,
    VerifyReport,
)
from sessiond.sessions.turn_task import TurnTask, Workshop
from sessiond.sessions.turnstile import Turnstile

logger = logging.getLogger(__name__)
UNNAMED = "chat-"
_RECENT = 32
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading the model gives. `n_ctx` and `n_ctx_train` in tokens."""

    machine: Machine
    renderer: PromptRenderer
    tokenizer: str
    model: str
    n_ctx: int
    n_ctx_train: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Limits:
    """`load_wait` and `drain` in seconds; `queue` is how many turns may wait."""

    queue: int = 64
    load_wait: float = 600.0
    drain: float = 10.0
    policy: str = "append-only"
    auto_policy: str = "fork"


class Lifecycle:
    """Implements `Turns`. Event loop only."""

    def __init__(
        self, register: Register, load: Callable[[], Awaitable[Loaded]], limits: Limits
    ) -> None:
        self.loading_progress: float | None = None
        self._register = register
        self._load = load
        self._limits = limits
        self._turnstile = Turnstile(limits.queue)
        self._overview = Overview(register, limits.auto_policy, limits.policy)
        self._loaded: Loaded | None = None
        self._loading: asyncio.Task[None] | None = None
        self._failure = ""
        self._draining = False
        self._turns: dict[asyncio.Task[None], TurnTask] = {}
        self._chores: list[asyncio.Task[None]] = []

    # --- starting and stopping

    async def start(self) -> None:
        """Read the ledger and begin to load the model. Raises LedgerError."""
        await self._register.open()
        self._loading = asyncio.create_task(self._load_model())

    async def loaded(self) -> None:
        """Waits until the model is loaded. Raises what loading raised."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    async def stop(self) -> None:
        """Admit nothing more, let turns end or cut them, bring everything to disk."""
        self._draining = True
        await self._end_turns()
        for chore in self._chores:
            chore.cancel()
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        await self._register.retry()
        if self._loaded is not None:
            machine = self._loaded.machine
            await machine.saver.save_for_stop()
            await machine.engine.stop()
            machine.saver.close()
            machine.store.close()
        if self._register.unsaved:
            logger.error("%d turns could not be saved: %s", self._register.unsaved, self._problem)
        await self._register.close()

    async def ready(self) -> None:
        if self._draining:
            raise Unavailable("sessiond is stopping.", hint="Try again in a moment.")
        if self._loaded is not None:
            return
        try:
            async with asyncio.timeout(self._limits.load_wait):
                await self.loaded()
        except TimeoutError as error:
            raise Unavailable("The model is still loading.", hint="Try again later.") from error
        except SessiondError as error:
            raise Unavailable(f"The model could not be loaded: {error}") from error

    # --- turns

    @property
    def model_name(self) -> str | None:
        return self._loaded.model if self._loaded else None

    async def open(self, request: TurnRequest) -> OpenTurn:
        if self._draining:
            raise Unavailable("sessiond is stopping.", hint="Try again in a moment.")
        self._turnstile.check()
        name = request.session.name or await self._unnamed(request)
        turn = TurnTask(request, name, self._workshop, self._record_for)
        if self._loaded is not None:
            await turn.decide(self._workshop())
        task = asyncio.create_task(turn.run(self.ready))
        self._turns[task] = turn
        task.add_done_callback(self._ended)
        return OpenTurn(name, turn.events())

    def _workshop(self) -> Workshop:
        loaded = self._require()
        return Workshop(
            loaded.machine, loaded.renderer, self._register, self._turnstile, loaded.tokenizer
        )

    def _record_for(self, name: str, ref: SessionRef) -> SessionRecord:
        """The session's record; a new one, in memory only, for an unknown name."""
        if name in self._register:
            return self._register[name]
        return SessionRecord.new(name, time.time(), named=ref.named, agent=ref.agent)

    async def _unnamed(self, request: TurnRequest) -> str:
        """The unnamed session whose transcript the request extends furthest, else a new name."""
        best, depth = "", 0
        recent = [r.name for r in self._register.records if _is_unnamed(r)][:_RECENT]
        for name in recent:
            match = (await self._register.tree(name)).match(request.content)
            extent = match.matched_messages + match.matched_characters
            if extent > depth:
                best, depth = name, extent
        return best or self._register.new_name()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._turns.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            logger.error("A turn failed.", exc_info=error)

    # --- sessions

    async def summaries(self) -> list[SessionSummary]:
        return [await self._summary(record) for record in self._register.records]

    async def summary(self, name: str) -> SessionSummary:
        return await self._summary(self._register[name])

    async def create(self, name: str, policy: str | None) -> SessionSummary:
        record = SessionRecord.new(name, time.time(), named=True, policy=policy)
        await self._register.create(record)
        return await self._summary(record)

    async def update(self, name: str, policy: str | None) -> SessionSummary:
        await self._register.set_policy(name, policy)
        return await self.summary(name)

    async def delete(self, name: str) -> None:
        record = self._register[name]
        self._refuse_if_running(name, "removed")
        async with self._turnstile.pass_through():
            if self._loaded is not None:
                await self._forget_state(record, self._loaded.machine)
            await self._register.delete(name)

    async def park(self, name: str) -> SessionSummary:
        record = self._register[name]
        await self.ready()
        self._refuse_if_running(name, "parked")
        async with self._turnstile.pass_through():
            machine = self._require().machine
            for view in await machine.residency.lines_of(record.id):
                await machine.residency.park(view)
            await machine.saver.write_captures()
        return await self._summary(record)

    async def resume(self, name: str) -> ResumeReport:
        record = self._register[name]
        await self.ready()
        self._refuse_if_running(name, "resumed")
        async with self._turnstile.pass_through():
            return await self._resume(record, self._require())

    async def turns(self, name: str) -> list[TurnSummary]:
        return await self._overview.turns(self._register[name].name)

    async def transcript(self, name: str) -> list[TranscriptMessage]:
        tree = await self._register.tree(self._register[name].name)
        leaf = tree.main_line(time.time())
        said: list[TranscriptMessage] = []
        for turn in tree.path(leaf) if leaf is not None else ():
            new = (
                [(message.role, message.content) for message in turn.content.messages]
                if isinstance(turn.content, Chat)
                else [("text", turn.content.prompt)]
            )
            for role, content in [*new, ("assistant", turn.reply)]:
                said.append(TranscriptMessage(turn.number, role, content))
        return said

    async def verify(self) -> VerifyReport:
        await self.ready()
        machine = self._require().machine
        await machine.saver.write_captures()
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
        loaded = self._loaded
        usage = await asyncio.to_thread(loaded.machine.store.usage) if loaded else None
        if loaded:
            await self._observe(loaded.machine)
        return Health(
            status=self._status(),
            detail=self._failure or self._problem,
            model=loaded.model if loaded else None,
            memory_kind=str(loaded.machine.memory.kind) if loaded else None,
            n_ctx=loaded.n_ctx if loaded else None,
            n_ctx_train=loaded.n_ctx_train if loaded else None,
            codec=loaded.verdict.codec if loaded else None,
            codec_detail=loaded.verdict.detail if loaded else "",
            staging="none",
            running=self._turnstile.running,
            queued=self._turnstile.waiting,
            sessions=len(self._register.records),
            unsaved_turns=self._register.unsaved,
            disk_bytes=usage.bytes if usage else 0,
            disk_quota=usage.quota if usage else 0,
            loading_progress=None if loaded else self.loading_progress,
        )

    # --- inside

    @property
    def _problem(self) -> str:
        problem, count = self._register.problem, self._register.unsaved
        return f"{count} turns are not saved: {problem}" if count else ""

    def _status(self) -> Literal["ok", "loading", "draining", "failed"]:
        if self._draining:
            return "draining"
        if self._failure:
            return "failed"
        return "ok" if self._loaded else "loading"

    def _require(self) -> Loaded:
        if self._loaded is None:
            raise Unavailable("The model is still loading.", hint="Try again later.")
        return self._loaded

    async def _load_model(self) -> None:
        try:
            self._loaded = await self._load()
        except SessiondError as error:
            self._failure = str(error)
            raise
        saver = self._loaded.machine.saver
        self._chores = [
            asyncio.create_task(saver.watch(lambda: self._turnstile.running > 0)),
            asyncio.create_task(self._retry_unsaved()),
        ]

    async def _retry_unsaved(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            before = self._register.unsaved
            if before and not await self._register.retry():
                logger.info("%d turns that waited are saved now.", before)
            UNSAVED_TURNS.set(self._register.unsaved)

    async def _end_turns(self) -> None:
        if self._turns:
            await asyncio.wait(list(self._turns), timeout=self._limits.drain)
        for turn in list(self._turns.values()):
            turn.cancel()
        if self._turns:
            await asyncio.wait(list(self._turns), timeout=self._limits.drain)

    async def _summary(self, record: SessionRecord) -> SessionSummary:
        return await self._overview.summary(record, self._loaded.machine if self._loaded else None)

    async def _observe(self, machine: Machine) -> None:
        counts = machine.engine.core.captures
        CAPTURES.labels("frozen").set(counts.frozen)
        CAPTURES.labels("direct").set(counts.direct)
        CAPTURE_MS.set(counts.engine_ms)

    def _refuse_if_running(self, name: str, verb: str) -> None:
        if any(turn.session == name and not turn.over for turn in self._turns.values()):
            raise Conflict(
                f"{name!r} is running a turn and cannot be {verb}.",
                hint="Try again when it has ended.",
            )

    async def _forget_state(self, record: SessionRecord, machine: Machine) -> None:
        """Lines in the context, and on disk what no other session stands on."""
        await machine.residency.drop_session(record.id)
        tree = await self._register.tree(record.name)
        for leaf in tree.leaves():
            stored = await asyncio.to_thread(machine.store.lookup, tree.path_tokens(leaf))
            keys = [s.key for s in stored.snapshots] + [b.key for b in reversed(stored.blocks)]
            await asyncio.to_thread(machine.store.drop, keys)

    async def _resume(self, record: SessionRecord, loaded: Loaded) -> ResumeReport:
        tree, machine = await self._register.tree(record.name), loaded.machine
        leaf = tree.main_line(time.time())
        if leaf is None:
            return ResumeReport(record.name, "new", 0, 0, 0, 0.0, 0.0)
        summary = await self._overview.summary(record, machine)
        root = tree.path(leaf)[0].number
        now = datetime.fromtimestamp(record.created).astimezone()
        composed = resumed(tree, leaf, loaded.renderer, loaded.tokenizer, now)
        execution = Execution(machine, Owner(record.id, root), composed.prompt)
        began = time.monotonic()
        outcome = await execution.land_and_evaluate()
        elapsed = (time.monotonic() - began) * 1e3
        plan, stored = outcome.landed.plan, outcome.landed.stored
        return ResumeReport(
            session=record.name,
            source=source_of(plan, known=True),
            tokens=len(composed.prompt),
            restored_tokens=min(plan.restored, plan.position),
            prefilled_tokens=len(composed.prompt) - plan.position,
            restore_ms=elapsed,
            predicted_ms=summary.back_in_ms,
            miss=find_miss(composed, plan, stored, machine.memory, machine.fingerprint),
        )


def _is_unnamed(record: SessionRecord) -> bool:
    return record.name.startswith(UNNAMED) and not record.named
