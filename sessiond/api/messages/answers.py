"""What answers of Anthropic's API look like, for the OpenAPI document alone."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from sessiond.api.answers import SessionBlock, Timings


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str
    code: str
    param: str | None


class AnthropicError(BaseModel):
    """`request_id`: what the log has it under."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str = ""


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class CacheCreation(BaseModel):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class ThinkingTokens(BaseModel):
    thinking_tokens: int


class MessageUsage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    output_tokens_details: ThinkingTokens


class AssistantTurn(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    diagnostics: dict[str, Any] | None
    timings: Timings
    sessiond: SessionBlock


class TokenCount(BaseModel):
    input_tokens: int
