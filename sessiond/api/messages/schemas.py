"""What requests of Anthropic's API may say. llama.cpp's samplers are accepted beside its own."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sessiond.api.fields import WHOLE, Label, Nothing, StopText
from sessiond.api.messages.errors import ThreadUnsupported
from sessiond.api.schemas import Generation, Schema
from sessiond.engine.sampling import Ending
from sessiond.errors import InvalidRequest

Blocks = Annotated[list[Any], Field(max_length=10_000)]

# Templates know three degrees.
_EFFORTS = {"xhigh": "high", "max": "high"}


class MessageIn(Schema):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ToolChoiceIn(Schema):
    type: Literal["auto", "any", "tool", "none"]
    name: Label | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Schema):
    type: Label
    display: Label | None = None


class OutputFormat(Schema):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Schema):
    effort: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")] | None = None
    format: OutputFormat | None = None


class Diagnostics(Schema):
    previous_message_id: Label | None = None


class Prompt(Schema):
    """What decides the tokens of a prompt."""

    model: Label | None = None
    system: str | Blocks | None = None
    messages: Annotated[list[MessageIn], Field(min_length=1, max_length=100_000)]
    tools: Annotated[list[dict[str, Any]], Field(max_length=4096)] | None = None
    tool_choice: ToolChoiceIn | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None

    def effort(self) -> dict[str, str]:
        """As OpenAI writes it."""
        effort = self.output_config.effort if self.output_config else None
        return {} if effort is None else {"reasoning_effort": _EFFORTS.get(effort, effort)}


class MessagesRequest(Prompt, Generation):
    """`max_tokens` 0 asks only that the prompt be read; one token is the least there is."""

    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=16)] | None = None
    diagnostics: Diagnostics | None = None
    thread: Annotated[dict[str, Any] | None, Nothing] = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.thread is not None:
            raise ThreadUnsupported(
                "thread is not supported: sessions are found without it.",
                hint="Send the whole conversation, without thread.",
                param="thread",
            )
        return self

    def ending(self) -> Ending:
        stop = self.stop_sequences or ()
        return Ending(self.token_limit(), tuple(stop), bool(self.ignore_eos))

    def token_limit(self) -> int | None:
        return None if self.max_tokens is None else max(1, self.max_tokens)

    def schema_text(self) -> str | None:
        """Raises InvalidRequest."""
        wanted = self.output_config.format if self.output_config else None
        given = super().schema_text()
        if wanted is None:
            return given
        if self.grammar is not None or given is not None:
            raise InvalidRequest(
                "output_config.format is given, and a grammar or json_schema, too.",
                hint="Send one.",
                param="output_config.format",
            )
        return json.dumps(wanted.schema_)

    @property
    def omits_thoughts(self) -> bool:
        return bool(self.thinking and self.thinking.display == "omitted")
