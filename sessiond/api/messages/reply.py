"""One reply in the words of Anthropic's API, whole or as server-sent events."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessiond.api.dialect import Json
from sessiond.api.failure import Failure
from sessiond.api.messages.errors import anthropic_body
from sessiond.api.messages.events import BlockWriter, content, event
from sessiond.api.messages.marks import Lifetime
from sessiond.api.messages.wording import diagnostics, input_usage, stop, usage
from sessiond.api.reply import session_block, timings
from sessiond.engine.events import Logprob, Progress
from sessiond.sessions.turn import Finished, Spoken

_UNKNOWN = Progress(total=0, cached=0, processed=0, elapsed_ms=0.0)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the client wants to be told: of the cache, of misses, of the reasoning."""

    lifetime: Lifetime | None = None
    diagnostics: bool = False
    thoughts: bool = True


class MessagesReply:
    """`model` is asked when the first word is written, since it may still be loading before."""

    def __init__(self, model: Callable[[], str], wish: Wish | None = None) -> None:
        self._model = model
        self._wish = wish or Wish()
        self._id = f"msg_{secrets.token_hex(12)}"
        self._begun = self._ended = False
        self._blocks = BlockWriter(thoughts=self._wish.thoughts)

    def progress(self, progress: Progress) -> bytes:
        return self._begin(progress)

    def spoken(self, spoken: Spoken) -> bytes:
        return self._begin() + b"".join(map(self._blocks.part, spoken.parts))

    def last(self, finished: Finished) -> bytes:
        self._ended = True
        end = event(
            "message_delta",
            delta=stop(finished),
            usage=usage(finished, self._wish.lifetime),
            **self._told(finished),
        )
        return self._begin() + self._blocks.close() + end + event("message_stop")

    def alive(self) -> bytes:
        """Claude Code takes neither comments nor pings for life, but deltas without text."""
        return b"" if self._ended else self._begin() + self._blocks.alive()

    def failed(self, failure: Failure) -> bytes:
        self._ended = True
        body = anthropic_body(failure)
        return event(body.pop("type"), **body)

    def whole(self, finished: Finished, logprobs: Sequence[Logprob] | None) -> Json:
        return {
            **self._heading(),
            "content": content(finished.parts, thoughts=self._wish.thoughts),
            **stop(finished),
            "usage": usage(finished, self._wish.lifetime),
            **self._told(finished),
        }

    def _told(self, finished: Finished) -> Json:
        report = finished.report
        return {
            "diagnostics": diagnostics(report) if self._wish.diagnostics else None,
            "timings": timings(report),
            "sessiond": session_block(report),
        }

    def _begin(self, known: Progress = _UNKNOWN) -> bytes:
        """The opening with what is known by then, the first time; b"" after that."""
        if self._begun:
            return b""
        self._begun = True
        message: Json = {
            **self._heading(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                **input_usage(known.total, known.cached, self._wish.lifetime),
                "output_tokens": 0,
            },
            "diagnostics": {"cache_miss_reason": None} if self._wish.diagnostics else None,
        }
        return event("message_start", message=message)

    def _heading(self) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model()}
