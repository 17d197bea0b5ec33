"""What answers look like, for the OpenAPI document alone: nothing is made or checked with these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from sessiond.sessions.explanation import Explanation
from sessiond.sessions.turn import (
    LineRole,
    Miss,
    SessionSummary,
    Source,
    TranscriptMessage,
    TurnSummary,
)

Documented = dict[int | str, dict[str, Any]]
"""What FastAPI takes as `responses`."""
_TEXT = {"type": "string"}
_EVENT = {"type": "object", "properties": {"event": _TEXT, "data": _TEXT}, "required": ["data"]}
_EVENTS = {"text/event-stream": {"itemSchema": _EVENT}}


def documented(model: Any, status: int = 200, *, streams: bool = False) -> Documented:
    """`streams`: the same route answers with server-sent events, too, if it is asked to."""
    told = {"model": model, "description": "Done"}
    return {status: {**told, "content": _EVENTS} if streams else told}


def refusals(model: Any) -> Documented:
    return {
        "4XX": {"model": model, "description": "Refused, with the reason; nothing has changed"},
        "5XX": {"model": model, "description": "Failed or too busy; the log has more under the id"},
    }


class ErrorDetail(BaseModel):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    code: str
    param: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class Timings(BaseModel):
    """llama-server's names."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class SessionBlock(BaseModel):
    session: str
    line: LineRole
    turn: int
    source: Source
    cached_tokens: int
    restored_tokens: int
    prefilled_tokens: int
    restore_ms: float
    ttft_ms: float
    saved: bool
    miss: Miss | None


class CachedTokens(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = []


class Token(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenChoice(Token):
    top_logprobs: list[Token]


class ChatLogprobs(BaseModel):
    content: list[TokenChoice]
    refusal: None


class ChatChoice(BaseModel):
    index: Literal[0]
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: Literal[0]
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class _Generated(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage
    timings: Timings
    sessiond: SessionBlock


class ChatCompletion(_Generated):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(_Generated):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelMeta(BaseModel):
    n_ctx: int | None
    n_ctx_train: int | None


class ServedModel(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["sessiond"]
    meta: ModelMeta


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ServedModel]


class SessionList(BaseModel):
    sessions: list[SessionSummary]


class TurnList(BaseModel):
    turns: list[TurnSummary]


class Transcript(BaseModel):
    messages: list[TranscriptMessage]


class Explained(BaseModel):
    rewrites: list[Explanation]
    misses: list[TurnSummary]


class Verified(BaseModel):
    """A report, and whether there is nothing bad in it."""

    blocks: int
    snapshots: int
    bytes: int
    damaged: list[str]
    missing: list[str]
    turns: int
    unsaved_turns: int
    clean: bool


class GenerationDefaults(BaseModel):
    id: int
    id_task: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    params: dict[str, Any]


class Modalities(BaseModel):
    vision: bool
    audio: bool


class Props(BaseModel):
    default_generation_settings: GenerationDefaults
    total_slots: int
    model_alias: str
    model_path: str
    modalities: Modalities
    chat_template: str | None
    bos_token: str
    eos_token: str
    build_info: str


class Piece(BaseModel):
    id: int
    piece: str | list[int]


class Tokens(BaseModel):
    tokens: list[int] | list[Piece]


class Detokenized(BaseModel):
    content: str


class AppliedTemplate(BaseModel):
    prompt: str
