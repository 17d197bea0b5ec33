"""A Turns that answers from a script: deterministic deltas, faults on demand, and a record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.events import Logprob, Progress, TokenLogprob
from sessiond.engine.fake import CHATML, FakeModel
from sessiond.errors import Conflict, NotFound, SessionNotFound
from sessiond.sessions.anatomy import Anatomy
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.gauges import Gauges
from sessiond.sessions.history import HistoryReport
from sessiond.sessions.parts import Called, Part, Said, joined
from sessiond.sessions.responses import not_found
from sessiond.sessions.text import Served, Vocabulary
from sessiond.sessions.transcript import Content
from sessiond.sessions.transfer.exporting import Exported
from sessiond.sessions.transfer.filename import file_name
from sessiond.sessions.transfer.importing import Naming
from sessiond.sessions.transfer.report import ImportReport
from sessiond.sessions.turn import (
    Finished,
    Health,
    OpenTurn,
    ResumeReport,
    SessionChange,
    SessionSummary,
    Spoken,
    StoredResponse,
    TranscriptMessage,
    TurnEvent,
    TurnReport,
    TurnRequest,
    TurnSummary,
    VerifyReport,
)

REPORT = TurnReport(
    session="",
    line="main",
    turn=1,
    source="new",
    prompt_tokens=11,
    cached_tokens=4,
    restored_tokens=3,
    prefilled_tokens=7,
    completion_tokens=0,
    restore_ms=1.5,
    ttft_ms=2.5,
    prompt_ms=3.5,
    predicted_ms=5.0,
    saved=True,
    finish_reason="stop",
)
HEALTH = Health(
    status="ok",
    detail="",
    model="scripted",
    memory_kind="attention",
    n_ctx=8192,
    n_ctx_train=4096,
    codec="blocks",
    codec_detail="",
    staging="none",
    running=0,
    queued=0,
    sessions=0,
    unsaved_turns=0,
    disk_bytes=0,
    disk_quota=1,
)
PREFILL = Progress(total=11, cached=4, processed=8, elapsed_ms=1.0)


@dataclass
class ScriptedTurns:
    """`slow` seconds pass before each event. `fault` is raised by open and by every other call.

    `late_fault` is raised from the events after the last delta. `closed` counts events that were
    closed before they had ended, `open_cancelled` cancelled opens, `pulled` single events.
    """

    deltas: Sequence[str] = ("Hel", "lo ", "wörld")
    parts: Sequence[Part] = ()
    hold_after: int | None = None
    report: TurnReport = REPORT
    health_now: Health = HEALTH
    slow: float = 0.0
    open_slow: float = 0.0
    fault: Exception | None = None
    late_fault: Exception | None = None
    unended: bool = False
    requests: list[TurnRequest] = field(default_factory=list)
    counted: list[Content] = field(default_factory=list)
    sessions: dict[str, SessionSummary] = field(default_factory=dict)
    stored: dict[str, StoredResponse] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    file: Sequence[bytes] = ()
    started: int = 0
    pulled: int = 0
    closed: int = 0
    open_cancelled: int = 0
    finished: int = 0

    @property
    def model_name(self) -> str | None:
        return self.health_now.model

    async def health(self) -> Health:
        return self.health_now

    async def ready(self) -> None:
        self._fail()

    async def count(self, content: Content) -> int:
        self._fail()
        self.counted.append(content)
        return 42

    async def vocabulary(self) -> Vocabulary:
        self._fail()
        model = FakeModel(name="scripted", n_ctx_train=4096)
        renderer = TemplateRenderer(model, ChatTemplate(CHATML))
        return Vocabulary(model, renderer, await self.served())

    async def served(self) -> Served:
        self._fail()
        return Served("scripted", "/m/s.gguf", CHATML, 4096, 4, "<s>", "<|im_end|>")

    async def open(self, request: TurnRequest) -> OpenTurn:
        self.requests.append(request)
        try:
            await asyncio.sleep(self.open_slow)
        except asyncio.CancelledError:
            self.open_cancelled += 1
            raise
        self._fail()
        session = request.session.name or "unnamed-1"
        return OpenTurn(session, self._events(session, request.logprobs))

    async def _events(self, session: str, logprobs: int | None) -> AsyncGenerator[TurnEvent, None]:
        self.started += 1
        ended = False
        try:
            for happened in self._script(session, logprobs):
                await asyncio.sleep(3600 if self.pulled == self.hold_after else self.slow)
                self.pulled += 1
                yield happened
            if self.late_fault:
                raise self.late_fault
            ended = True
        finally:
            self.finished += ended
            self.closed += not ended

    def _script(self, session: str, logprobs: int | None) -> list[TurnEvent]:
        events: list[TurnEvent] = [PREFILL]
        parts = self.parts or [Said(text) for text in self.deltas]
        for token, part in enumerate(parts):
            text = self.raw(part)
            chosen = () if logprobs is None else (logprob(token, text, logprobs),)
            events.append(Spoken(text, (part,) if text else (), (token,), chosen))
        if not self.late_fault and not self.unended:
            report = replace(self.report, session=session, completion_tokens=len(parts))
            events.append(Finished("".join(map(self.raw, parts)), report, joined(parts)))
        return events

    @staticmethod
    def raw(part: Part) -> str:
        return part.arguments if isinstance(part, Called) else part.text

    async def summaries(self) -> list[SessionSummary]:
        self._fail()
        return list(self.sessions.values())

    async def summary(self, name: str) -> SessionSummary:
        self._fail()
        if name not in self.sessions:
            raise SessionNotFound("There is no such session.", param="name")
        return self.sessions[name]

    async def create(self, name: str, change: SessionChange) -> SessionSummary:
        self._fail()
        if name in self.sessions:
            raise Conflict("The name is taken.", param="name")
        self.sessions[name] = session_summary(name, change.policy or "append-only")
        return await self.update(name, change)

    async def update(self, name: str, change: SessionChange) -> SessionSummary:
        known = await self.summary(name)
        if change.name in self.sessions:
            raise Conflict("The name is taken.", param="name")
        if change.name is not None:
            del self.sessions[name]
            name, known = change.name, replace(known, name=change.name)
        if change.pinned is not None:
            known = replace(known, pinned=change.pinned)
        policy = change.policy or known.policy
        pinned = known.pinned_front if change.pinned_front is None else change.pinned_front
        self.sessions[name] = replace(known, policy=policy, pinned_front=pinned)
        return self.sessions[name]

    async def export(self, name: str, *, state: bool) -> Exported:
        await self.summary(name)

        async def parts() -> AsyncGenerator[bytes, None]:
            for part in self.file:
                yield part

        return Exported(file_name(name), parts())

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
        self._fail()
        if name in self.sessions:
            raise Conflict("The name is taken.", param="name")
        async for chunk in file:
            self.file = [*self.file, chunk]
        made = await self.create(name or naming("n"), SessionChange())
        return ImportReport(made, 2, 40, 3, 4096, 0, "", 0)

    async def fork(self, name: str, new: str, at: int | None) -> SessionSummary:
        known = await self.summary(name)
        if at not in (None, 1):
            raise NotFound("There is no such turn.", param="at")
        if new in self.sessions:
            raise Conflict("The name is taken.", param="name")
        self.sessions[new] = replace(known, name=new)
        return self.sessions[new]

    async def compact(self, name: str) -> SessionSummary:
        self.sessions[name] = replace(await self.summary(name), may_compact=True)
        return self.sessions[name]

    async def explain(self, name: str) -> tuple[Explanation, ...]:
        await self.summary(name)
        return self.explanations

    async def delete(self, name: str) -> None:
        await self.summary(name)
        del self.sessions[name]

    async def resume(self, name: str) -> ResumeReport:
        await self.summary(name)
        return ResumeReport(name, "disk", 40, 30, 10, 2.0, 2.2)

    async def park(self, name: str) -> SessionSummary:
        self.sessions[name] = replace(await self.summary(name), state="disk")
        return self.sessions[name]

    async def turns(self, name: str) -> list[TurnSummary]:
        await self.summary(name)
        return [
            TurnSummary(
                1, None, "main", ("user",), 11, 4, 7, 3, "new", None, "stop", 2.5, time.time()
            )
        ]

    async def anatomy(self, name: str) -> Anatomy:
        await self.summary(name)
        return Anatomy(name, False, 0, 0, None, False, (), (), None, ())

    async def history(self, owner: str | None = None) -> HistoryReport:
        self._fail()
        return HistoryReport(0.0, 1.0, 0, (), ())

    async def gauges(self) -> Gauges:
        self._fail()
        return Gauges(0, 0, 64, (), None, None)

    async def transcript(self, name: str) -> list[TranscriptMessage]:
        await self.summary(name)
        return [TranscriptMessage(1, "user", "grüß dich")]

    async def response(self, response: str) -> StoredResponse:
        self._fail()
        if response not in self.stored:
            raise not_found(response)
        return self.stored[response]

    async def forget_response(self, response: str) -> None:
        await self.response(response)
        del self.stored[response]

    async def verify(self) -> VerifyReport:
        self._fail()
        return VerifyReport(2, 1, 4096, ("b1",), (), 3, 0)

    def _fail(self) -> None:
        if self.fault:
            raise self.fault


def logprob(token: int, text: str, alternatives: int) -> Logprob:
    def likely(rank: int) -> TokenLogprob:
        word = text if rank == 0 else f"{text}~{rank}"
        chance = float("-inf") if rank == 2 else -0.5 * (rank + 1)
        return TokenLogprob(token + 100 * rank, word, word.encode(), chance)

    return Logprob(likely(0), tuple(likely(rank) for rank in range(alternatives)))


def session_summary(name: str, policy: str) -> SessionSummary:
    return SessionSummary(
        name=name,
        group=None,
        agent=None,
        title="",
        state="resident",
        tokens=0,
        turns=0,
        lines=0,
        created=1.0,
        last_used=1.0,
        bytes=0,
        policy=policy,
        hit_rate=0.0,
        back_in_ms=0.0,
    )
