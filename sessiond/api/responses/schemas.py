"""What requests of OpenAI's Responses API may say. Unknown fields are accepted."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import Field, model_validator

from sessiond.api.dialect import Json
from sessiond.api.fields import Alternatives, Count, Label, Nothing, Off
from sessiond.api.schemas import Generation, Schema
from sessiond.errors import InvalidRequest

MetadataKey = Annotated[str, Field(max_length=64)]
ResponseId = Annotated[str, Field(min_length=1, max_length=512)]

_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_ECHOED = (
    "model",
    "previous_response_id",
    "max_output_tokens",
    "max_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
)


class TextFormat(Schema):
    type: Literal["text", "json_object", "json_schema"]
    name: Label | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextConfig(Schema):
    format: TextFormat | None = None
    verbosity: Label | None = None


class Reasoning(Schema):
    effort: Label | None = None
    summary: Label | None = None
    generate_summary: Label | None = None


class ResponseRequest(Generation):
    """`truncation` is accepted, and nothing is ever truncated."""

    input: str | Annotated[list[dict[str, Any]], Field(max_length=100_000)]
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=4096)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    store: bool | None = None
    previous_response_id: ResponseId | None = None
    include: Annotated[list[Label], Field(max_length=64)] | None = None
    top_logprobs: Alternatives | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Annotated[dict[MetadataKey, Label], Field(max_length=16)] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    background: Off = None
    prompt: Annotated[Any, Nothing] = None

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if self.background:
            raise InvalidRequest(
                "background is not supported.",
                hint="Leave it out: the reply can be streamed.",
                param="background",
            )
        if self.prompt is not None:
            raise InvalidRequest(
                "prompt is not supported: there are no prompts stored here.",
                hint="Send instructions and input.",
                param="prompt",
            )
        return self

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def summarises(self) -> bool:
        """Whether the client reads reasoning where OpenAI puts summaries of it."""
        asked = self.reasoning and (self.reasoning.summary or self.reasoning.generate_summary)
        return bool(asked)

    @property
    def encrypts(self) -> bool:
        return _ENCRYPTED in (self.include or ())

    def token_limit(self) -> int | None:
        return self.max_output_tokens or self.max_tokens

    def alternatives(self) -> int | None:
        asked = self.top_logprobs is not None or _LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if asked else None

    def reply_schema(self) -> str | None:
        """The JSON schema that the reply is to follow, as text. Raises InvalidRequest."""
        wanted = self.text and self.text.format
        if not wanted or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return '{"type":"object"}'
        if wanted.schema_ is None:
            raise InvalidRequest(
                "text.format has no schema.",
                hint="Give one, or use json_object.",
                param="text.format.schema",
            )
        return orjson.dumps(wanted.schema_).decode()

    def echoed(self, raw: Json) -> Json:
        """What answers repeat of the request beside the conversation."""
        told: Json = {name: getattr(self, name) for name in _ECHOED}
        text, reasoning = raw.get("text") or {}, raw.get("reasoning") or {}
        return {
            **told,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "tool_choice": self.tool_choice or "auto",
            "text": {"format": {"type": "text"}, **text},
            "reasoning": {"effort": None, "summary": None, **reasoning},
            "truncation": "disabled",
            "store": self.stored,
            "background": False,
            "service_tier": "default",
        }
