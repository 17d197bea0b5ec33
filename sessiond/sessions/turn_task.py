"""One request from admission to commit, in a task of its own: it outlives a client that leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from sessiond.engine.constraint import Constraint
from sessiond.engine.events import Delta, Ended, Progress
from sessiond.engine.masking import prepare
from sessiond.engine.memory import Tokens, as_tokens
from sessiond.engine.sampling import Ending
from sessiond.engine.sequence import Owner
from sessiond.errors import (
    EngineError,
    SessiondError,
    StateError,
    TemplateError,
    Unavailable,
)
from sessiond.metrics import VIOLATIONS
from sessiond.sessions.ancestry import Inheritance
from sessiond.sessions.boundaries import boundaries_of, next_rewrite
from sessiond.sessions.composition import Composer, Composition
from sessiond.sessions.event_log import EventLog
from sessiond.sessions.execution import Execution, Outcome, Places, Wanted
from sessiond.sessions.explanation import ContextEditRejected, Explanation, Explanations
from sessiond.sessions.floor import Floor
from sessiond.sessions.history import History
from sessiond.sessions.lander import Landed, Machine
from sessiond.sessions.miss import expected_position, find_miss, miss_of
from sessiond.sessions.naming import owner_of
from sessiond.sessions.parts import PlainParser
from sessiond.sessions.pinned import Pinned, front_texts
from sessiond.sessions.placement import places
from sessiond.sessions.plan import source_of
from sessiond.sessions.prompt import PromptRenderer, check_length
from sessiond.sessions.register import Register
from sessiond.sessions.report import count, log, report_of
from sessiond.sessions.responses import sealed
from sessiond.sessions.review import Reviewer
from sessiond.sessions.rules import Rules
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.speech import Speech
from sessiond.sessions.title import asks_for_title, first_words, title_in
from sessiond.sessions.transcript import Chat, Content, characters
from sessiond.sessions.tree import SessionTree, Turn, TurnStats
from sessiond.sessions.turn import Miss, TurnEvent, TurnRequest
from sessiond.store.loss import Rank

LONG = 20_000
"""Characters of a conversation whose tokens are not looked for on the event loop."""
LINGER_S = 3.0
"""So long a turn without a token goes on for a client that left: the same request takes it over."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a turn is made with. `machine` and `renderer` exist once the model is loaded."""

    machine: Machine
    renderer: PromptRenderer
    register: Register
    floor: Floor
    tokenizer: str
    rules: Rules
    explanations: Explanations
    history: History


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a turn will be, while the tree has no more than these `turns`.

    `content` is what the client said; with the front that stays, and notes, where one is pinned.
    """

    tree: SessionTree
    turns: int
    content: Content
    composed: Composition
    pinned: Pinned | None
    rewrite: Explanation | None


class TurnTask:
    """The client's side reads `events`; when the last reader has closed them the turn is cancelled,
    and still committed.

    A turn that was cancelled before its first token leaves nothing behind.
    """

    def __init__(
        self,
        request: TurnRequest,
        session: str,
        workshop: Callable[[], Workshop],
        begun: Inheritance | None = None,
    ) -> None:
        self.session = session
        self.over = False
        self.number: int | None = None
        self.request = request
        self._workshop_of = workshop
        self._begun = begun
        self._new: SessionRecord | None = begun.record if begun else None
        self._decided: _Decided | None = None
        self._log = EventLog(self._left)
        self._ahead: asyncio.Task[None] | None = None
        self._execution: Execution | None = None
        self._speech = Speech(PlainParser())
        self._constraint: Constraint | None = None
        self._constrained = False
        self._cancelled = False
        self._cut: Unavailable | None = None
        self._admitted = False
        self._began = time.monotonic()
        self._first_token: float | None = None

    @property
    def waiting(self) -> bool:
        """For the model or for its turn, with a client that still wants it."""
        return not (self._admitted or self._cancelled or self.abandoned)

    def cancel(self) -> None:
        self._cancelled = True
        if self._execution is not None:
            self._execution.cancel()

    def cut(self) -> None:
        """The daemon stops: commit what there is, and tell those that read it that it is cut."""
        if not self._cancelled:
            self._cut = Unavailable(
                "sessiond is stopping, and this reply was cut.", hint="Try again in a moment."
            )
            self.cancel()

    @property
    def answering(self) -> bool:
        """Admitted and under way, with a client that wants it."""
        return self._admitted and not (self.over or self._cancelled or self.abandoned)

    @property
    def was_cut(self) -> bool:
        """Its readers were told so; it may have ended by itself before the cut."""
        return self._cut is not None and self._log.failed

    @property
    def failed(self) -> bool:
        """It ended, or will, without a reply."""
        return self._cancelled or self._log.failed

    @property
    def abandoned(self) -> bool:
        """Under way, and nobody reads it."""
        return not (self.over or self._cancelled or self._log.readers)

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """From the beginning, for one more reader. Raises what the turn raised."""
        return await self._log.read()

    def _left(self) -> None:
        if self._first_token is None and LINGER_S:
            asyncio.get_running_loop().call_later(LINGER_S, self._cancel_if_abandoned)
        else:
            self.cancel()

    def _cancel_if_abandoned(self) -> None:
        if self.abandoned:
            self.cancel()

    async def decide(self, shop: Workshop) -> None:
        """What needs the tokenizer but no evaluation. Raises InvalidRequest and its kin."""
        tree, record = await shop.register.tree(self.session), self._record(shop.register)
        if self._begun is not None and record is self._new:
            tree = self._begun.tree
        pinned = self._pinned(shop, tree, record)
        await self._tokenize_ahead(shop, tree, record, pinned)
        await self._constrain(shop, self._decide(shop, tree, record, pinned))

    def refuse(self, error: BaseException) -> None:
        """It was not admitted; those that read it already are told."""
        self.over = True
        if isinstance(error, SessiondError):
            self._log.end(error)
        self._log.end(EngineError("The turn was not admitted."))

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """The task's body. `ready` waits for the model."""
        try:
            await ready()
            await self._pass(self._workshop_of())
        except SessiondError as error:
            self._log.end(self._cut if self._cut and isinstance(error, Unavailable) else error)
            return
        except BaseException:
            self._log.end(EngineError("The turn failed; the log says more."))
            raise
        finally:
            self.over = True
            self._log.end()
        await self._workshop_of().machine.checkpoints.collect(patient=True)

    async def _pass(self, shop: Workshop) -> None:
        if shop.floor.full and self._decided is not None:
            self._ahead = asyncio.create_task(self._read_ahead(shop, self._decided.composed.prompt))
        begun = self._begun.tree if self._begun else None
        opened = shop.register.opened(self.session, self._record(shop.register), begun)
        async with opened as (record, tree), shop.floor.line(named=self._is_named):
            self._admitted = True
            if self._cancelled:
                raise Unavailable("The turn was cancelled before it began.")
            decided = self._decide(shop, tree, record)
            number = self.number = tree.take_number()
            try:
                await self._execute(shop, record, tree, decided, number)
            finally:
                tree.give_back(number)

    async def _read_ahead(self, shop: Workshop, prompt: Tokens) -> None:
        """While others run: the files of this turn come into the system's cache."""
        with suppress(StateError):
            store = shop.machine.store.of(owner_of(self.session))
            await asyncio.to_thread(store.will_read, prompt)

    async def _execute(
        self,
        shop: Workshop,
        record: SessionRecord,
        tree: SessionTree,
        decided: _Decided,
        number: int,
    ) -> None:
        shop.machine.saver.active()
        await self._constrain(shop, decided)
        wanted = self._wanted(shop, decided)
        execution = self._execution = self._prepare(shop, tree, decided, record, number)
        outcome = await execution.run(wanted, self._emit)
        shop.machine.saver.active()
        await self._settle(shop, record, tree, decided, outcome, number)

    @property
    def _is_named(self) -> bool:
        return self.request.session.name is not None

    def _record(self, register: Register) -> SessionRecord:
        """The session's; a new one, in memory only, for an unknown name."""
        if self.session in register:
            return register[self.session]
        if self._new is None:
            ref = self.request.session
            self._new = SessionRecord.new(
                self.session, time.time(), named=ref.named, agent=ref.agent
            )
        return self._new

    async def _tokenize_ahead(
        self, shop: Workshop, tree: SessionTree, record: SessionRecord, pinned: Pinned | None
    ) -> None:
        """Off the event loop, what takes long: a long conversation that no line begins with."""
        content = pinned.content if pinned else self.request.content
        if not isinstance(content, Chat) or characters(content) < LONG:
            return
        if tree.match(content).turn is None:
            now = record.clock
            with suppress(TemplateError):
                await asyncio.to_thread(shop.renderer.full, content, now)

    def _decide(
        self,
        shop: Workshop,
        tree: SessionTree,
        record: SessionRecord,
        pinned: Pinned | None = None,
    ) -> _Decided:
        """Raises InvalidRequest and its kin, ContextEditRejected among them."""
        known = self._decided
        if known is not None and known.tree is tree and known.turns == len(tree):
            return known
        now = record.clock
        pinned = pinned or self._pinned(shop, tree, record)
        content = pinned.content if pinned else self.request.content
        composer = Composer(shop.renderer, shop.tokenizer, now, shop.rules.reasoning)
        composed = composer.compose(content, tree)
        check_length(len(composed.prompt), shop.machine.limit, content)
        rewrite = self._review(shop, tree, record, content, composed)
        self._decided = _Decided(tree, len(tree), content, composed, pinned, rewrite)
        return self._decided

    def _pinned(self, shop: Workshop, tree: SessionTree, record: SessionRecord) -> Pinned | None:
        names = shop.rules.pinned_front_of(record)
        return shop.register.fronts.pin(record, self.request.content, names, tree)

    def _review(
        self,
        shop: Workshop,
        tree: SessionTree,
        record: SessionRecord,
        content: Content,
        composed: Composition,
    ) -> Explanation | None:
        reviewer = Reviewer(
            session=record.called,
            policy=shop.rules.policy_of(record, self.request.policy),
            declared=self.request.compact or record.may_compact,
            max_rewind=shop.rules.max_rewind,
            renderer=shop.renderer,
            tokenizer=shop.tokenizer,
            rates=shop.machine.rates,
            now=record.clock,
        )
        rewrite = reviewer.review(content, composed, tree)
        if rewrite is not None and rewrite.outcome == "refused":
            VIOLATIONS.labels("refused", rewrite.cause).inc()
            shop.explanations.add(record.id, rewrite)
            raise ContextEditRejected(record.called, rewrite)
        return rewrite

    def _prepare(
        self,
        shop: Workshop,
        tree: SessionTree,
        decided: _Decided,
        record: SessionRecord,
        number: int,
    ) -> Execution:
        composed = decided.composed
        root = number if composed.parent is None else tree.path(composed.parent)[0].number
        owner, places = (
            Owner(record.id, root, record.owner),
            self._places(shop, tree, decided, record),
        )
        enough = expected_position(composed.known, composed.prompt, len(composed.prompt) - 1)
        execution = Execution(shop.machine, shop.floor, owner, composed.prompt, places, enough)
        if self._cancelled:
            execution.cancel()
        return execution

    def _places(
        self, shop: Workshop, tree: SessionTree, decided: _Decided, record: SessionRecord
    ) -> Places:
        """Where to capture, once it is known where the evaluation begins."""
        now = record.clock
        composed, content = decided.composed, decided.content

        def at(landing: int) -> Mapping[int, int]:
            marked, rank = self.request.breakpoints, Rank.LAST_BOUNDARY
            if decided.rewrite is not None:
                marked += next_rewrite(content, decided.rewrite.leaf, tree)
                rank = Rank.END
            found = boundaries_of(content, composed, tree, shop.renderer, now, landing, marked)
            kept = places(len(composed.prompt), landing, found, marked=rank)
            return {place.position: place.rank for place in kept}

        return at

    def _wanted(self, shop: Workshop, decided: _Decided) -> Wanted:
        request, composed, shown = self.request, decided.composed, frozenset[int]()
        if isinstance(decided.content, Chat):
            parser = shop.renderer.parser(decided.content, composed.prompt, request)
            self._speech, shown = Speech(parser), shop.renderer.shown
        ending = self._ending(shop, composed)
        return Wanted(request.sampling, ending, request.logprobs, shown, self._constraint)

    async def _constrain(self, shop: Workshop, decided: _Decided) -> None:
        """Once; what takes long is off the event loop. Raises InvalidRequest."""
        request = self.request
        free = request.tool_choice.mode != "required" and not request.schema and not request.grammar
        if self._constrained or free:
            return
        prompt, model = decided.composed.prompt, shop.machine.engine.model

        def made() -> Constraint | None:
            wanted = shop.renderer.constraint(decided.content, prompt, request)
            if wanted is not None:
                prepare(model, wanted)
            return wanted

        self._constraint, self._constrained = await asyncio.to_thread(made), True

    def _ending(self, shop: Workshop, composed: Composition) -> Ending:
        room = max(1, shop.machine.limit - len(composed.prompt))
        wanted = self.request.ending.max_tokens
        return replace(
            self.request.ending, max_tokens=room if wanted is None else min(wanted, room)
        )

    def _emit(self, event: Progress | Delta) -> None:
        if self._first_token is None and isinstance(event, Delta):
            self._first_token = time.monotonic()
        self._log.add(event if isinstance(event, Progress) else self._speech.spoken(event))

    async def _settle(
        self,
        shop: Workshop,
        record: SessionRecord,
        tree: SessionTree,
        decided: _Decided,
        outcome: Outcome,
        number: int,
    ) -> None:
        landed, ended, composed = outcome.landed, outcome.ended, decided.composed
        if ended.reason == "cancelled" and not ended.tokens:
            raise Unavailable("The turn was cancelled before its first token.")
        miss = miss_of(decided.rewrite, composed, landed) or find_miss(
            composed, landed, shop.machine.memory, shop.machine.fingerprint
        )
        stats = self._stats(composed, landed, ended, miss)
        if rest := self._speech.rest():
            self._log.add(rest)
        rewrite = decided.rewrite
        turn = self._answered(_turn(shop, number, composed, ended, stats))
        if rewrite is not None and rewrite.outcome == "compacted":
            turn = replace(turn, replaces=rewrite.leaf)
        saved = await self._commit(shop, record, tree, turn, decided)
        report = report_of(record, tree, turn, landed, ended, saved)
        count(report, shop.register.unsaved)
        shop.history.add(record, report, time.time())
        log(record, report)
        if self._cut and ended.reason == "cancelled":
            raise self._cut
        self._log.add(self._speech.finished(ended.text, report))

    def _answered(self, turn: Turn) -> Turn:
        """As the client was told of it: to be found again by the id of the response it was."""
        asked, speech = self.request, self._speech
        turn = replace(turn, opened=speech.opened)
        if asked.response_id is None:
            return turn
        told = sealed(asked.response, speech.parts, speech.reasoning_tokens)
        return replace(turn, response_id=asked.response_id, response=told)

    async def _commit(
        self,
        shop: Workshop,
        record: SessionRecord,
        tree: SessionTree,
        turn: Turn,
        decided: _Decided,
    ) -> bool:
        rewrite, pinned = decided.rewrite, decided.pinned
        if pinned is not None:
            await shop.register.keep_front(pinned.key, front_texts(pinned.content))
        if rewrite is not None:
            shop.explanations.add(record.id, replace(rewrite, turn=turn.number))
            VIOLATIONS.labels(rewrite.outcome, rewrite.cause).inc()
        compacts = rewrite is not None and rewrite.outcome == "compacted"
        asks = asks_for_title(decided.content)
        given = title_in(turn.reply) if asks else first_words(decided.composed.content)
        record = replace(record, title=given)
        return await shop.register.commit(
            record, tree, turn, compacts=compacts, entitles=asks and bool(given)
        )

    def _stats(
        self, composed: Composition, landed: Landed, ended: Ended, miss: Miss | None
    ) -> TurnStats:
        plan, total = landed.plan, len(composed.prompt)
        first = self._first_token or time.monotonic()
        return TurnStats(
            prompt_tokens=total,
            cached=plan.position,
            restored=min(plan.restored, plan.position),
            prefilled=total - plan.position,
            source=source_of(plan, known=composed.known_turn is not None),
            miss=miss,
            ttft_ms=(first - self._began) * 1e3,
            prompt_ms=ended.prefill_ms,
        )


def _turn(
    shop: Workshop, number: int, composed: Composition, ended: Ended, stats: TurnStats
) -> Turn:
    fingerprint = shop.machine.fingerprint
    return Turn(
        number=number,
        parent=composed.parent,
        content=composed.content,
        kept=composed.kept,
        prompt_tokens=composed.own_tokens,
        reply_tokens=as_tokens(ended.tokens),
        reply=ended.text,
        finish_reason=ended.reason,
        tokenizer=shop.tokenizer,
        fingerprint=fingerprint.value,
        model=fingerprint.model,
        settings=fingerprint.settings,
        stats=stats,
        created=time.time(),
    )
