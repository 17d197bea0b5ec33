"""The response object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sessiond.api.dialect import Json
from sessiond.api.responses.diagnostics import cache_diagnostics
from sessiond.api.responses.items import Wording
from sessiond.sessions.turn import Miss

Status = Literal["in_progress", "completed", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class Heading:
    """What a response says from its beginning on. `echoed` repeats the request."""

    wording: Wording
    created: int
    instructions: str | None
    tools: Sequence[Json]
    echoed: Mapping[str, Any]

    @property
    def id(self) -> str:
        return self.wording.response

    def body(self, status: Status, model: str, output: Sequence[Json], **more: object) -> Json:
        return {
            **self.echoed,
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": model,
            "instructions": self.instructions,
            "tools": self.tools,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **more,
        }


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of one turn. `written` ones were evaluated, and are in the cache now."""

    prompt: int
    cached: int
    written: int
    completion: int
    reasoning: int
    miss: Miss | None

    def told(self) -> Json:
        usage = {
            "input_tokens": self.prompt,
            "input_tokens_details": {
                "cached_tokens": self.cached,
                "cache_write_tokens": self.written,
            },
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }
        diagnostics = cache_diagnostics(self.miss, self.cached)
        return {"usage": usage, "prompt_cache_diagnostics": diagnostics}


def ending(finish_reason: str) -> tuple[Status, Json]:
    """The status of a reply that has ended, and what else is said of it."""
    if finish_reason in ("stop", "tool_calls"):
        return "completed", {}
    return "incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}
