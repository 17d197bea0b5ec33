"""One request from admission to commit, in a task of its own: it outlives a client that leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sessiond.engine.events import Delta, Ended, Progress
from sessiond.engine.memory import as_tokens
from sessiond.engine.sampling import Ending
from sessiond.engine.sequence import Owner
from sessiond.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    SessiondError,
    Unavailable,
)
from sessiond.metrics import REFUSALS, REWRITES
from sessiond.sessions.boundaries import boundaries_of
from sessiond.sessions.composition import Composer, Composition
from sessiond.sessions.execution import Execution, Landed, Machine, Outcome, Places
from sessiond.sessions.explanation import ContextEditRejected, Explanation, Explanations
from sessiond.sessions.miss import expected_position, find_miss, miss_of
from sessiond.sessions.pinned import Pinned, front_texts
from sessiond.sessions.placement import places
from sessiond.sessions.plan import source_of
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.register import Register
from sessiond.sessions.report import count, log, report_of
from sessiond.sessions.review import Reviewer
from sessiond.sessions.rules import Rules
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import Content, Text, title
from sessiond.sessions.tree import SessionTree, Turn, TurnStats
from sessiond.sessions.turn import Finished, Miss, TurnEvent, TurnRequest
from sessiond.sessions.turnstile import Turnstile

_UNDER_WAY = Progress(0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a turn is made with. `machine` and `renderer` exist once the model is loaded."""

    machine: Machine
    renderer: PromptRenderer
    register: Register
    turnstile: Turnstile
    tokenizer: str
    rules: Rules
    explanations: Explanations


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
    """The client's side reads `events`; closing it cancels the turn, which is still committed.

    A turn that was cancelled before its first token leaves nothing behind.
    """

    def __init__(
        self,
        request: TurnRequest,
        session: str,
        workshop: Callable[[], Workshop],
    ) -> None:
        self.session = session
        self.over = False
        self._request = request
        self._workshop_of = workshop
        self._new: SessionRecord | None = None
        self._decided: _Decided | None = None
        self._queue: asyncio.Queue[TurnEvent | SessiondError | None] = asyncio.Queue()
        self._execution: Execution | None = None
        self._cancelled = False
        self._admitted = False
        self._began = time.monotonic()
        self._first_token: float | None = None

    @property
    def waiting(self) -> bool:
        """For the model or for its turn, with a client that still wants it."""
        return not (self._admitted or self._cancelled)

    def cancel(self) -> None:
        self._cancelled = True
        if self._execution is not None:
            self._execution.cancel()

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Under way already, so that closing it unread cancels the turn. Raises what it raised."""
        events = self._events()
        await anext(events)
        return events

    async def _events(self) -> AsyncGenerator[TurnEvent, None]:
        try:
            yield _UNDER_WAY
            while (event := await self._queue.get()) is not None:
                if isinstance(event, SessiondError):
                    raise event
                yield event
        finally:
            self.cancel()

    async def decide(self, shop: Workshop) -> None:
        """What needs the tokenizer but no evaluation. Raises InvalidRequest and its kin."""
        tree = await shop.register.tree(self.session)
        self._decide(shop, tree, self._record(shop.register))

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """The task's body. `ready` waits for the model."""
        try:
            await ready()
            await self._pass(self._workshop_of())
        except SessiondError as error:
            self._queue.put_nowait(error)
            return
        except BaseException:
            self._queue.put_nowait(EngineError("The turn failed; the log says more."))
            raise
        finally:
            self.over = True
            self._queue.put_nowait(None)
        await self._workshop_of().machine.checkpoints.collect()

    async def _pass(self, shop: Workshop) -> None:
        async with shop.turnstile.pass_through():
            self._admitted = True
            if self._cancelled:
                raise Unavailable("The turn was cancelled before it began.")
            record = self._record(shop.register)
            tree = await shop.register.tree(self.session)
            decided = self._decide(shop, tree, record)
            composed = decided.composed
            shop.machine.saver.active()
            execution = self._execution = self._prepare(shop, tree, decided, record)
            outcome = await execution.run(
                self._request.sampling,
                self._ending(shop, composed),
                self._request.logprobs,
                self._emit,
            )
            shop.machine.saver.active()
            await self._settle(shop, record, tree, decided, outcome)

    def _record(self, register: Register) -> SessionRecord:
        """The session's; a new one, in memory only, for an unknown name."""
        if self.session in register:
            return register[self.session]
        if self._new is None:
            ref = self._request.session
            self._new = SessionRecord.new(
                self.session, time.time(), named=ref.named, agent=ref.agent
            )
        return self._new

    def _decide(self, shop: Workshop, tree: SessionTree, record: SessionRecord) -> _Decided:
        """Raises InvalidRequest and its kin, ContextEditRejected among them."""
        known = self._decided
        if known is not None and known.tree is tree and known.turns == len(tree):
            return known
        now = datetime.fromtimestamp(record.created).astimezone()
        pinned = self._pinned(shop, tree, record)
        content = pinned.content if pinned else self._request.content
        composer = Composer(shop.renderer, shop.tokenizer, now, shop.rules.reasoning)
        composed = composer.compose(content, tree)
        check_length(len(composed.prompt), shop.machine.limit, content)
        rewrite = self._review(shop, tree, record, content, composed)
        self._decided = _Decided(tree, len(tree), content, composed, pinned, rewrite)
        return self._decided

    def _pinned(self, shop: Workshop, tree: SessionTree, record: SessionRecord) -> Pinned | None:
        names = shop.rules.pinned_front_of(record)
        return shop.register.fronts.pin(self._request.content, names, tree)

    def _review(
        self,
        shop: Workshop,
        tree: SessionTree,
        record: SessionRecord,
        content: Content,
        composed: Composition,
    ) -> Explanation | None:
        reviewer = Reviewer(
            session=record.name,
            policy=shop.rules.policy_of(record, self._request.policy),
            declared=self._request.compact or record.may_compact,
            max_rewind=shop.rules.max_rewind,
            renderer=shop.renderer,
            tokenizer=shop.tokenizer,
            rates=shop.machine.rates,
            now=datetime.fromtimestamp(record.created).astimezone(),
        )
        rewrite = reviewer.review(content, composed, tree)
        if rewrite is not None and rewrite.outcome == "refused":
            REFUSALS.labels(rewrite.cause).inc()
            shop.explanations.add(record.id, rewrite)
            raise ContextEditRejected(record.name, rewrite)
        return rewrite

    def _prepare(
        self, shop: Workshop, tree: SessionTree, decided: _Decided, record: SessionRecord
    ) -> Execution:
        composed = decided.composed
        root = tree.next_number if composed.parent is None else tree.path(composed.parent)[0].number
        owner, places = Owner(record.id, root), self._places(shop, tree, decided, record)
        enough = expected_position(composed.known, composed.prompt, len(composed.prompt) - 1)
        execution = Execution(shop.machine, owner, composed.prompt, places, enough)
        if self._cancelled:
            execution.cancel()
        return execution

    def _places(
        self, shop: Workshop, tree: SessionTree, decided: _Decided, record: SessionRecord
    ) -> Places:
        """Where to capture, once it is known where the evaluation begins."""
        now = datetime.fromtimestamp(record.created).astimezone()
        composed, content = decided.composed, decided.content

        def at(landing: int) -> Mapping[int, int]:
            found = boundaries_of(content, composed, tree, shop.renderer, now, landing)
            return {
                place.position: place.rank for place in places(len(composed.prompt), landing, found)
            }

        return at

    def _ending(self, shop: Workshop, composed: Composition) -> Ending:
        room = max(1, shop.machine.limit - len(composed.prompt))
        wanted = self._request.ending.max_tokens
        return replace(
            self._request.ending, max_tokens=room if wanted is None else min(wanted, room)
        )

    def _emit(self, event: Progress | Delta) -> None:
        if self._first_token is None and isinstance(event, Delta):
            self._first_token = time.monotonic()
        self._queue.put_nowait(event)

    async def _settle(
        self,
        shop: Workshop,
        record: SessionRecord,
        tree: SessionTree,
        decided: _Decided,
        outcome: Outcome,
    ) -> None:
        landed, ended, composed = outcome.landed, outcome.ended, decided.composed
        if ended.reason == "cancelled" and not ended.tokens:
            raise Unavailable("The turn was cancelled before its first token.")
        miss = miss_of(decided.rewrite, composed, landed) or find_miss(
            composed, landed, shop.machine.memory, shop.machine.fingerprint
        )
        stats = self._stats(composed, landed, ended, miss)
        turn = _turn(shop, tree, composed, ended, stats)
        record = replace(record, title=record.title or title(composed.content))
        saved = await self._commit(shop, record, tree, turn, decided)
        report = report_of(record, tree, turn, landed, ended, saved)
        count(report, shop.register.unsaved)
        log(record, report)
        self._queue.put_nowait(Finished(ended.text, report))

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
            REWRITES.labels(rewrite.outcome, rewrite.cause).inc()
        compacts = rewrite is not None and rewrite.outcome == "compacted"
        return await shop.register.commit(record, tree, turn, compacts=compacts)

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


def check_length(tokens: int, limit: int, content: Content) -> None:
    """Raises ContextLengthExceeded, or InvalidRequest for no token at all. Both in tokens."""
    param = "prompt" if isinstance(content, Text) else "messages"
    if not tokens:
        raise InvalidRequest(f"'{param}' has no tokens.", hint="Say something.", param=param)
    if tokens > limit:
        raise ContextLengthExceeded(
            f"The prompt has {tokens} tokens, and a line can have {limit}.",
            hint="Start a new chat, let the agent compact, or set a larger model.n_ctx.",
            param=param,
        )


def _turn(
    shop: Workshop, tree: SessionTree, composed: Composition, ended: Ended, stats: TurnStats
) -> Turn:
    fingerprint = shop.machine.fingerprint
    return Turn(
        number=tree.next_number,
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
