"""What requests may say. Unknown fields are normal; every known number and list has bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from sessiond.api.fields import (
    WHOLE,
    Alternatives,
    Bias,
    Count,
    Label,
    Off,
    Penalty,
    Share,
    StopText,
    TokenId,
    ToolName,
)
from sessiond.engine.sampling import Ending, Sampling
from sessiond.errors import InvalidRequest
from sessiond.sessions.turn import ToolChoice

_SAMPLER_FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "frequency_penalty",
    "presence_penalty",
)
# llama.cpp reads the largest 32-bit seed as "draw one".
_SEEDS = 2**32 - 1


class Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(Schema):
    include_usage: bool | None = None


class Generation(Schema):
    """What chat and raw completions have in common."""

    model: Label | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000), WHOLE] | None = None
    min_p: Share | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Field(ge=0, le=1_000_000), WHOLE] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WHOLE] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=4096)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    n: Literal[1] | None = None
    user: str | None = None
    session_id: str | None = None
    return_progress: bool | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self) -> Sampling:
        asked: dict[str, Any] = {
            field: value for field in _SAMPLER_FIELDS if (value := getattr(self, field)) is not None
        }
        if self.top_k is not None:
            asked["top_k"] = max(0, self.top_k)
        if self.seed is not None and self.seed != -1:
            asked["seed"] = self.seed % _SEEDS
        biases = tuple((int(token), bias) for token, bias in (self.logit_bias or {}).items())
        return Sampling(**asked, logit_bias=biases)

    def ending(self) -> Ending:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Ending(self.token_limit(), stop, bool(self.ignore_eos))

    def token_limit(self) -> int | None:
        return self.max_tokens

    def schema_text(self) -> str | None:
        """Raises InvalidRequest."""
        if self.json_schema is None:
            return None
        if self.grammar is not None:
            raise InvalidRequest(
                "Both grammar and json_schema are given.", hint="Send one.", param="grammar"
            )
        return json.dumps(self.json_schema)


class FunctionCall(Schema):
    name: Annotated[str, Field(min_length=1, max_length=512)]
    arguments: str | dict[str, Any] | None = None


class ToolCallIn(Schema):
    id: Label | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class MessageIn(Schema):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Any], Field(max_length=10_000)] | None = None
    name: Label | None = None
    tool_calls: Annotated[list[ToolCallIn], Field(max_length=1024)] | None = None
    tool_call_id: Label | None = None
    reasoning_content: str | None = None


class FunctionChoice(Schema):
    name: ToolName


class NamedChoice(Schema):
    """Flat, as some clients send it, too."""

    type: Literal["function"] | None = None
    function: FunctionChoice | None = None
    name: ToolName | None = None

    @property
    def tool(self) -> str | None:
        return self.function.name if self.function else self.name


class JsonSchema(Schema):
    name: Label | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None


class ResponseFormat(Schema):
    """`schema` beside `type` is llama-server's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    def schema_text(self) -> str | None:
        """None for plain text. Raises InvalidRequest."""
        if self.type == "text":
            return None
        given = self.json_schema.schema_ if self.json_schema else None
        given = self.schema_ if given is None else given
        if given is None and self.type == "json_schema":
            raise InvalidRequest(
                "response_format has no schema.",
                hint="Give json_schema.schema, or use json_object.",
                param="response_format.json_schema.schema",
            )
        return json.dumps({"type": "object"} if given is None else given)


class ChatRequest(Generation):
    messages: Annotated[list[MessageIn], Field(min_length=1, max_length=100_000)]
    max_completion_tokens: Count | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=4096)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                "top_logprobs is set, but logprobs is not true.",
                hint='Add "logprobs": true.',
                param="top_logprobs",
            )
        return self

    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def choice(self) -> ToolChoice:
        """Raises InvalidRequest."""
        parallel = self.parallel_tool_calls is not False
        if isinstance(self.tool_choice, NamedChoice):
            return tool_choice("required", self.tool_choice.tool, parallel, self.tools)
        return tool_choice(self.tool_choice or "auto", None, parallel, self.tools)

    def schema_text(self) -> str | None:
        asked = self.response_format.schema_text() if self.response_format else None
        given = super().schema_text()
        if asked is not None and (self.grammar is not None or given is not None):
            raise InvalidRequest(
                "response_format is given, and a grammar or json_schema, too.",
                hint="Send one.",
                param="response_format",
            )
        if self.grammar is not None and self.choice().mode == "required":
            raise InvalidRequest(
                "grammar cannot be combined with a tool_choice that asks for a call.",
                hint="Send one.",
                param="grammar",
            )
        return given if asked is None else asked

    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def tool_choice(
    mode: Literal["none", "auto", "required"],
    name: str | None,
    parallel: bool,
    tools: Sequence[Mapping[str, Any]] | None,
) -> ToolChoice:
    """Of tools in OpenAI's shape. Raises InvalidRequest where there is none to choose."""
    names = [_tool_name(tool) for tool in tools or ()]
    if mode == "required" and not names:
        raise InvalidRequest(
            "tool_choice asks for a call, but there are no tools.",
            hint="Send tools, or leave tool_choice out.",
            param="tool_choice",
        )
    if name is not None and name not in names:
        raise InvalidRequest(
            f"tool_choice names {name!r}, which is not among the tools.",
            hint="Name one of them.",
            param="tool_choice",
        )
    return ToolChoice(mode, name, parallel)


def _tool_name(tool: Mapping[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


class CompletionRequest(Generation):
    prompt: Annotated[str | list[Any], WithJsonSchema({"type": "string"})]
    logprobs: Alternatives | None = None
    echo: Off = None
    suffix: Annotated[str | None, WithJsonSchema({"enum": ["", None]})] = None
    best_of: Literal[1] | None = None

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if isinstance(self.prompt, list):
            raise InvalidRequest(
                "prompt is a list; token ids and several prompts are not supported.",
                hint="Send one string per request.",
                param="prompt",
            )
        if self.echo:
            raise InvalidRequest(
                "echo is not supported.", hint="Leave it out, or send false.", param="echo"
            )
        if self.suffix:
            raise InvalidRequest(
                "suffix is not supported.", hint="Put the whole prompt into prompt.", param="suffix"
            )
        return self
