"""State that another model, library or setting has left behind is made anew while nobody waits.

A line that is being read again runs beside the floor: who comes cancels it, and waits for the step
it is at, as anything would. What was evaluated by then stays in the context, first to leave it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sessiond.engine.core import EngineCore
from sessiond.engine.memory import Tokens
from sessiond.engine.sequence import Owner
from sessiond.errors import EngineError, SessiondError, Unavailable
from sessiond.metrics import WARMED_SESSIONS, WARMED_TOKENS
from sessiond.sessions.boundaries import line_boundaries
from sessiond.sessions.calm import Calm
from sessiond.sessions.composition import Composition, resumed
from sessiond.sessions.execution import Execution
from sessiond.sessions.health import Warmth
from sessiond.sessions.lander import Machine
from sessiond.sessions.placement import places
from sessiond.sessions.plan import Plan, plan
from sessiond.sessions.prompt import Boundaries, check_length
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.shelf import Shelf
from sessiond.sessions.standing import FOREIGN, MODEL_CHANGED, SETTINGS_CHANGED, files_of
from sessiond.sessions.tree import Turn
from sessiond.sessions.turn import SessionSummary
from sessiond.sessions.turn_task import Workshop

logger = logging.getLogger(__name__)
IDLE_S = 60.0
"""So long nothing must have used the model."""
WEEK_S = 7 * 86400.0
WAITING, READING = "waiting to be read again", "being read again"
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A main line as it reads now, where its messages begin, and why its state is missing."""

    record: SessionRecord
    owner: Owner
    reason: str
    composed: Composition
    bounds: Boundaries

    @property
    def prompt(self) -> Tokens:
        return self.composed.prompt


@dataclass(frozen=True, slots=True)
class _Lack:
    """Why state was missing that was looked for, of a session last `used` then (Unix seconds)."""

    used: float
    reason: str


class Warming:
    """Event loop only. Each session is made anew at most once, whatever comes of it."""

    def __init__(
        self,
        register: Register,
        most: Callable[[], int],
        seen: Callable[[SessionRecord], Awaitable[object]],
    ) -> None:
        """`most` sessions at a time are looked at: pinned ones first, then those used last. `seen`
        is called for each whose state is there, though its last turn says otherwise.
        """
        self._register = register
        self._most = most
        self._seen = seen
        self._fingerprint = ""
        self._settled: set[str] = set()
        self._begun: set[str] = set()
        self._lacking: dict[str, _Lack] = {}
        self._anew: dict[str, tuple[float, Plan]] = {}
        self._current: str | None = None
        self._execution: Execution | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        self._asked = asyncio.Event()
        self._full = False
        self._sessions = 0
        self._tokens = 0

    @property
    def active(self) -> bool:
        return self._current is not None

    @property
    def warmth(self) -> Warmth:
        """Of sessions that were not looked at yet nothing is known: they do not wait."""
        lacking = [] if self._full else [r for r in self._waiting() if self._lack(r)]
        return Warmth(len(lacking), self._sessions, self._tokens)

    def begin(self, fingerprint: str) -> None:
        """A model was loaded: what was found under another fingerprint is of no use."""
        if fingerprint != self._fingerprint:
            for known in (self._settled, self._begun, self._lacking, self._anew):
                known.clear()
            self._fingerprint, self._full = fingerprint, False

    def has_room(self) -> None:
        """There may be room now where there was none."""
        self._full = False

    def interrupt(self) -> None:
        """Somebody wants the model."""
        self._asked.set()
        if self._execution is not None:
            self._execution.cancel()

    async def interrupted(self) -> None:
        """Until nothing is evaluated or restored here any more."""
        await self._ended.wait()

    async def watch(
        self, shop: Callable[[], Workshop], idle: Callable[[], float], after: float, calm: Calm
    ) -> None:
        """Again and again, once nothing has used the model for `after` seconds; `idle` tells."""
        while True:
            left = max(after - idle(), _LOOK_S)
            await calm.pause(left, busy=left > _LOOK_S)
            self._asked.clear()
            while idle() >= after and not self._full and (waiting := self._waiting()):
                unknown = [record for record in waiting if not self._lack(record)]
                await self._try((unknown or waiting)[0], shop())
                if self._asked.is_set():
                    break

    def told(
        self, summaries: Sequence[SessionSummary], shelf: Shelf | None
    ) -> list[SessionSummary]:
        """With what is being done about state that is missing."""
        known = self._lacking or self._anew
        if not known and not any(s.reason in FOREIGN for s in summaries):
            return list(summaries)
        waiting = set() if self._full else {record.id for record in self._waiting()}
        return [self._said(summary, waiting, shelf) for summary in summaries]

    # --- inside

    def _said(
        self, summary: SessionSummary, waiting: set[str], shelf: Shelf | None
    ) -> SessionSummary:
        if summary.name not in self._register:
            return summary
        record = self._register[summary.name]
        reason = self._lack(record) or summary.reason
        if record.id == self._current:
            return replace(summary, reason=f"{reason}, {READING}")
        if record.id in waiting and reason in FOREIGN and summary.state == "ledger":
            return replace(summary, reason=f"{reason}, {WAITING}")
        used, prospect = self._anew.get(record.id, (0.0, None))
        if summary.state != "ledger" or prospect is None or used != record.last_used:
            return summary
        back_in = shelf.rates.restore.ms(prospect.restored_bytes) if shelf else 0.0
        return replace(summary, reason="", state="disk", back_in_ms=back_in)

    def _lack(self, record: SessionRecord) -> str:
        """Why its state is missing, "" where that is not known since it was used last."""
        lack = self._lacking.get(record.id)
        return lack.reason if lack is not None and lack.used == record.last_used else ""

    def _waiting(self) -> list[SessionRecord]:
        since = time.time() - WEEK_S
        recent = [r for r in self._register.records if r.pinned or r.last_used >= since]
        chosen = sorted(recent, key=lambda record: not record.pinned)[: self._most()]
        return [record for record in chosen if record.id not in self._settled]

    async def _try(self, record: SessionRecord, shop: Workshop) -> None:
        try:
            if await self._settle(record, shop):
                self._is_settled(record)
        except SessiondError as error:
            if self._asked.is_set() and isinstance(error, Unavailable):
                return
            self._is_settled(record)
            logger.warning("A session could not be read again in idle time: %s", error)
        finally:
            self._current = None

    def _is_settled(self, record: SessionRecord) -> None:
        self._settled.add(record.id)
        self._lacking.pop(record.id, None)

    async def _settle(self, record: SessionRecord, shop: Workshop) -> bool:
        """False if it is to be tried again later: all are looked at before any is made anew."""
        candidate = await self._look(record, shop)
        if candidate is None:
            return True
        found = await self._prospect(candidate, shop.machine)
        if found.position < len(candidate.prompt) - 1:
            if not self._lack(record):
                self._lacking[record.id] = _Lack(record.last_used, candidate.reason)
                return False
            if not await self._has_room(candidate, shop.machine):
                self._stop_for_want_of_room()
                return False
            self._current = record.id
            if not await self._make(candidate, shop):
                return False
            found = await self._prospect(candidate, shop.machine)
        if record.id in self._begun:
            self._sessions += 1
            WARMED_SESSIONS.inc()
            logger.info("The state of a session was made anew: %d tokens.", len(candidate.prompt))
        if not len(candidate.composed.known):
            self._anew[record.id] = (record.last_used, found)
        with suppress(SessiondError):
            await self._seen(record)
        return True

    async def _look(self, record: SessionRecord, shop: Workshop) -> _Candidate | None:
        """None where another model, library or setting has nothing to do with it."""
        tree = await self._register.glance(record.name)
        leaf = tree.main_line(time.time())
        if leaf is None or not (reason := _foreign(tree[leaf], shop)):
            return None
        clock, renderer = record.clock, shop.renderer
        composed = await asyncio.to_thread(resumed, tree, leaf, renderer, shop.tokenizer, clock)
        bounds = Boundaries()
        if len(composed.known) and not shop.machine.saver.whole:
            bounds = await asyncio.to_thread(line_boundaries, leaf, tree, renderer, clock)
        check_length(len(composed.prompt), shop.machine.limit, composed.content)
        owner = Owner(record.id, tree.path(leaf)[0].number, record.owner)
        return _Candidate(record, owner, reason, composed, bounds)

    async def _prospect(self, candidate: _Candidate, machine: Machine) -> Plan:
        prompt = candidate.prompt
        store = machine.store.of(candidate.record.owner)
        stored = await asyncio.to_thread(store.lookup, prompt)
        residents = await machine.residency.residents(candidate.owner)
        whole = machine.saver.whole
        return plan(prompt, len(prompt), residents, stored, machine.memory, whole=whole)

    async def _has_room(self, candidate: _Candidate, machine: Machine) -> bool:
        usage = await asyncio.to_thread(machine.store.usage)
        files = usage.blocks + usage.snapshots
        average = usage.bytes / files if files else 0.0
        wanted = average * files_of(len(candidate.prompt))
        return await asyncio.to_thread(machine.store.room) > wanted

    def _stop_for_want_of_room(self) -> None:
        self._full = True
        logger.info("No more sessions are read again: the store has no room for their state.")

    async def _make(self, candidate: _Candidate, shop: Workshop) -> bool:
        """Evaluated, saved and out of the context again; False if somebody came before the end."""
        machine = shop.machine
        with machine.store.sparing():
            if self._asked.is_set() or not await self._evaluate(candidate, shop):
                return False
            lines = await machine.residency.lines_of(candidate.record.id)
            saved = [await machine.saver.save(view) for view in lines]
            if self._asked.is_set():
                return False
            async with machine.residency.lock:
                for view in await machine.residency.lines_of(candidate.record.id):
                    if not view.running:
                        await machine.residency.park(view)
            await machine.checkpoints.write()
        if not all(saved):
            self._stop_for_want_of_room()
        return all(saved)

    async def _evaluate(self, candidate: _Candidate, shop: Workshop) -> bool:
        """False if somebody came before the end."""
        prompt = candidate.prompt
        where = _places(len(prompt), candidate.bounds)
        self._execution = Execution(shop.machine, shop.floor, candidate.owner, prompt, where)
        self._ended.clear()
        self._begun.add(candidate.record.id)
        try:
            outcome = await self._execution.land_and_evaluate()
        except BaseException:
            self._execution.cancel()
            raise
        finally:
            self._execution = None
            self._ended.set()
            shop.floor.left()
        self._tokens += outcome.ended.prefilled
        WARMED_TOKENS.inc(outcome.ended.prefilled)
        if outcome.ended.reason != "cancelled":
            return True
        with suppress(EngineError):
            await shop.machine.engine.call(_first_to_leave(candidate.record.id))
        return False


def _foreign(leaf: Turn, shop: Workshop) -> str:
    """What has changed since, "" for nothing."""
    current = shop.machine.fingerprint
    if leaf.model != current.model or leaf.tokenizer != shop.tokenizer:
        return MODEL_CHANGED
    return SETTINGS_CHANGED if leaf.fingerprint != current.value else ""


def _places(length: int, bounds: Boundaries) -> Callable[[int], Mapping[int, int]]:
    return lambda landing: {p.position: p.rank for p in places(length, landing, bounds)}


def _first_to_leave(session: str) -> Callable[[EngineCore], None]:
    """Of all idle lines."""

    def mark(core: EngineCore) -> None:
        for sequence in core.sequences:
            if sequence.owner is not None and sequence.owner.session == session:
                sequence.last_used = 0.0

    return mark
