"""A turn from the outside: what a request asks for and what is reported of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sessiond.engine.events import FinishReason, Logprob, Progress
from sessiond.engine.sampling import Ending, Sampling
from sessiond.sessions.cause import Cause
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.parts import Part

if TYPE_CHECKING:  # clients of these reports need no transcripts
    from sessiond.sessions.anatomy import Anatomy
    from sessiond.sessions.gauges import Gauges
    from sessiond.sessions.history import HistoryReport
    from sessiond.sessions.text import Served, Vocabulary
    from sessiond.sessions.transfer.exporting import Exported
    from sessiond.sessions.transfer.importing import Naming
    from sessiond.sessions.transfer.report import ImportReport
from sessiond.sessions.transcript import Content, Message

Source = Literal["resident", "disk", "ledger", "fork", "new"]
LineRole = Literal["main", "side"]
SessionState = Literal["resident", "disk", "ledger"]
Status = Literal["ok", "loading", "unloaded", "draining", "failed"]
MissCause = (
    Cause
    | Literal["model_changed", "settings_changed", "damaged", "evicted", "not_saved", "no_snapshot"]
)


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Which session a request names.

    `name` and `parent` are full names. `name` None: the unnamed session of `owner` whose transcript
    it extends, else a new one.
    `named` says that a person chose the name (a `/s/…` path), which decides the policy. `parent`
    is the session whose agent has started this one's.
    """

    name: str | None = None
    named: bool = False
    agent: str | None = None
    parent: str | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether a reply calls tools. "required": it must, the tool `name` where one is given.

    `parallel`: a reply that must may make several calls.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """`logprobs` is the number of alternatives wanted per token, None for none at all.

    `policy` holds for this request instead of the session's. `compact`: it may rewrite history.
    Two with the same `idempotency_key` are one. `schema` is a JSON schema as text, which the reply
    must follow, `grammar` one of llama.cpp's (GBNF). `raw_reasoning`: reasoning stays in what is
    said, as the model wrote it. `response_id` finds the turn again; `response` is JSON of what is
    told then beside the reply. `breakpoints` are messages, by number, before which the client would
    like to come back.
    """

    session: SessionRef
    content: Content
    sampling: Sampling = Sampling()
    ending: Ending = Ending()
    logprobs: int | None = None
    policy: str | None = None
    compact: bool = False
    idempotency_key: str | None = None
    tool_choice: ToolChoice = ToolChoice()
    schema: str | None = None
    grammar: str | None = None
    raw_reasoning: bool = False
    response_id: str | None = None
    response: str = "{}"
    breakpoints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Miss:
    """Why `tokens` old tokens had to be evaluated again."""

    cause: MissCause
    message: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TurnReport:
    """The `sessiond` block, `usage` and `timings` of one turn. Tokens and milliseconds.

    `cached` prompt tokens were reused (`restored` of them from disk), `prefilled` were evaluated:
    cached + prefilled == prompt. `session` is the name as its owner says it.
    """

    session: str
    line: LineRole
    turn: int
    source: Source
    prompt_tokens: int
    cached_tokens: int
    restored_tokens: int
    prefilled_tokens: int
    completion_tokens: int
    restore_ms: float
    ttft_ms: float
    prompt_ms: float
    predicted_ms: float
    saved: bool
    finish_reason: FinishReason
    miss: Miss | None = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """`text` is new as the model wrote it, `parts` what can be shown by now: less, or nothing,
    while a character, a stop string or a call is incomplete.
    """

    text: str
    parts: tuple[Part, ...]
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Sent after the turn is in the ledger, or `report.saved` is False. `text` is all of it as the
    model wrote it, `parts` are the same as all that were shown. `reasoning_tokens` are about those
    of the reasoning.
    """

    text: str
    report: TurnReport
    parts: tuple[Part, ...] = ()
    reasoning_tokens: int = 0


TurnEvent = Progress | Spoken | Finished


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An admitted turn: `session` is the name it runs under. Closing `events` cancels it.

    `response_id` is that of the request that began it.
    """

    session: str
    events: AsyncGenerator[TurnEvent, None]
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One row of `sessiond list`, under the full name. Times are Unix seconds.

    `back_in_ms` is an estimate, 0 when resident. `reason` says in words why the whole session would
    have to be evaluated again, else it is "".
    """

    name: str
    group: str | None
    agent: str | None
    title: str
    state: SessionState
    tokens: int
    turns: int
    lines: int
    created: float
    last_used: float
    bytes: int
    policy: str
    hit_rate: float
    back_in_ms: float
    reason: str = ""
    saved: bool = True
    pinned_front: tuple[str, ...] = ()
    may_compact: bool = False
    pinned: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class SessionChange:
    """What a person sets of a session; None leaves it as it is. Patterns as in the configuration.

    `policy` and `pinned_front` may be "default" and ("default",): those of the configuration.
    `name` is the full one that it is to have from now on.
    """

    policy: str | None = None
    pinned_front: tuple[str, ...] | None = None
    name: str | None = None
    pinned: bool | None = None


@dataclass(frozen=True, slots=True)
class TurnSummary:
    turn: int
    parent: int | None
    line: LineRole
    role_of_new: tuple[str, ...]
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    completion_tokens: int
    source: Source
    miss: Miss | None
    finish_reason: FinishReason
    ttft_ms: float
    created: float


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """`turn` is the turn that brought the message."""

    turn: int
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A turn as the response that clients of OpenAI's Responses API know by its id.

    `asked` are the messages it answered, `said` is the reply as later requests have it, `output`
    as it was shown. `fields` is what the API keeps beside these. `created` in Unix seconds.
    """

    id: str
    session: str
    turn: int
    created: float
    finish_reason: FinishReason
    asked: tuple[Message, ...]
    said: Message
    tools: tuple[str, ...]
    output: tuple[Part, ...]
    fields: Mapping[str, Any]
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    source: Source
    miss: Miss | None


@dataclass(frozen=True, slots=True)
class ResumeReport:
    session: str
    source: Source
    tokens: int
    restored_tokens: int
    prefilled_tokens: int
    restore_ms: float
    predicted_ms: float
    miss: Miss | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`damaged` and `missing` list the keys that were refused; they are quarantined by then."""

    blocks: int
    snapshots: int
    bytes: int
    damaged: tuple[str, ...]
    missing: tuple[str, ...]
    turns: int
    unsaved_turns: int

    @property
    def clean(self) -> bool:
        return not self.damaged and not self.missing


@dataclass(frozen=True, slots=True)
class Health:
    """`status` is "ok", "loading", "unloaded" (nobody has used the model for a while; the next turn
    loads it again), "draining" or "failed"; `detail` says more when something is wrong.

    `codec` is "blocks" or "whole" (with the reason in `codec_detail`). `staging` says what memory
    snapshots are copied into: "device" (pinned), "locked", "pageable", or "none" where none are
    taken. Ring sizes are bytes. `max_lines` lines at most are in the context at once. So many
    sessions as `warming` wait to be read again in idle time, or are; `warmed_sessions` were.
    """

    status: Status
    detail: str
    model: str | None
    memory_kind: str | None
    n_ctx: int | None
    n_ctx_train: int | None
    codec: str | None
    codec_detail: str
    staging: str
    running: int
    queued: int
    sessions: int
    unsaved_turns: int
    disk_bytes: int
    disk_quota: int
    loading_progress: float | None = None
    staging_detail: str = ""
    ring_bytes: int = 0
    ring_budget: int = 0
    ring_entries: int = 0
    resident_lines: int = 0
    max_lines: int = 0
    warming: int = 0
    warmed_sessions: int = 0
    warmed_tokens: int = 0
    resident_sessions: int = 0


class Turns(Protocol):
    """What the HTTP layer needs of the daemon. Event loop thread only; nothing blocks it."""

    @property
    def model_name(self) -> str | None:
        """None until the model was loaded once."""
        ...

    async def health(self) -> Health: ...

    async def ready(self) -> None:
        """Wait for the model, at most `load_wait`; one that was unloaded is loaded again.

        Raises Unavailable: loading failed or takes too long, or the daemon is stopping.
        """
        ...

    async def count(self, content: Content) -> int:
        """Tokens of a prompt by itself. Waits for the model, and raises as `ready` does.

        Raises TemplateError.
        """
        ...

    async def vocabulary(self) -> Vocabulary:
        """The loaded model's. Waits for it, and raises as `ready` does."""
        ...

    async def served(self) -> Served:
        """Waits for the model at the start, but does not load one that was unloaded."""
        ...

    async def open(self, request: TurnRequest) -> OpenTurn:
        """Decide everything that needs no evaluation, then let it be streamed.

        Never waits for the model: while it loads, what is wrong with the length or the template is
        raised from `events` instead.
        Raises InvalidRequest and its kin, QueueFull, Unavailable: before anything has changed.
        """
        ...

    async def summaries(self) -> list[SessionSummary]: ...

    async def summary(self, name: str) -> SessionSummary:
        """Raises SessionNotFound, as the following do."""
        ...

    async def create(self, name: str, change: SessionChange) -> SessionSummary:
        """Raises Conflict if the name is taken, InvalidRequest for a bad pattern."""
        ...

    async def update(self, name: str, change: SessionChange) -> SessionSummary:
        """Raises InvalidRequest for a bad pattern; for another name Conflict if it is taken or a
        turn runs.
        """
        ...

    async def export(self, name: str, *, state: bool) -> Exported:
        """The session as one file, without the saved state unless it is wanted; that waits for the
        model, and raises as `ready` does. Raises LedgerError, StoreFailed.
        """
        ...

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
        """A session from such a file, under this name or the one in the file; its state, unless it
        is not wanted, as far as it is of this model and fits. Waits for the model as `ready` does.

        Of who is not `trusted` neither state is taken nor ids of responses: the first could be
        anything, and the others would tell whether they are known. `size` bytes are announced.

        Raises Conflict if the name is taken, InvalidExport, BodyTooLarge: before anything has
        changed.
        """
        ...

    async def fork(self, name: str, new: str, at: int | None) -> SessionSummary:
        """A new session that goes on from turn `at` of `name`, else from the end of its main line.

        State is shared, and both go on independently. Raises NotFound for an unknown turn,
        Conflict if the new name is taken or there are no turns yet.
        """
        ...

    async def compact(self, name: str) -> SessionSummary:
        """Permit the next rewrite of its history, once."""
        ...

    async def explain(self, name: str) -> tuple[Explanation, ...]:
        """Its last rewrites, refused or let through; the oldest comes first."""
        ...

    async def delete(self, name: str) -> None:
        """Its turns leave the ledger, its state the store. Raises Conflict while a turn runs."""
        ...

    async def resume(self, name: str) -> ResumeReport: ...

    async def park(self, name: str) -> SessionSummary: ...

    async def turns(self, name: str) -> list[TurnSummary]: ...

    async def anatomy(self, name: str) -> Anatomy:
        """Where the state of its main line lies. Raises SessionNotFound, LedgerError."""
        ...

    async def history(self, owner: str | None = None) -> HistoryReport:
        """The turns of the last day, at most since the start; of one owner's sessions only."""
        ...

    async def gauges(self) -> Gauges:
        """How full the context and the ring are."""
        ...

    async def transcript(self, name: str) -> list[TranscriptMessage]:
        """Messages of the main line, in order."""
        ...

    async def response(self, response: str) -> StoredResponse:
        """Raises ResponseNotFound, LedgerError."""
        ...

    async def forget_response(self, response: str) -> None:
        """It cannot be found any more; its turn stays. Raises ResponseNotFound, LedgerError."""
        ...

    async def verify(self) -> VerifyReport: ...
