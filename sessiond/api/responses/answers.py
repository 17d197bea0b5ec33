"""What answers of the Responses API look like, for the OpenAPI document alone."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class Item(BaseModel):
    """Its other fields depend on its type."""

    id: str
    type: Literal["message", "reasoning", "function_call", "function_call_output"]
    status: Literal["in_progress", "completed", "incomplete"]


class InputTokenDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokenDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class Incomplete(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """And what it repeats of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    instructions: str | None
    tools: list[dict[str, Any]]
    output: list[Item]
    error: None
    incomplete_details: Incomplete | None
    usage: ResponseUsage
    prompt_cache_diagnostics: dict[str, Any]
    sessiond: dict[str, Any]


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(BaseModel):
    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
