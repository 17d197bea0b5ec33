"""How a turn's report and its tokens are worded: usage, timings, the sessiond block, chunks."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import orjson

from sessiond.api.dialect import Json
from sessiond.api.failure import Failure
from sessiond.engine.events import Logprob, Progress
from sessiond.sessions.parts import Part, Said, calls
from sessiond.sessions.turn import Finished, Spoken, TurnReport

_MARK = "\x00"
_DONE = b"data: [DONE]\n\n"
_COMMENT = b": \n\n"


def usage(finished: Finished) -> Json:
    report = finished.report
    return {
        "prompt_tokens": report.prompt_tokens,
        "completion_tokens": report.completion_tokens,
        "total_tokens": report.prompt_tokens + report.completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": report.cached_tokens,
            "cache_write_tokens": report.prefilled_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": finished.reasoning_tokens},
    }


def timings(report: TurnReport) -> Json:
    """llama-server's names; rates are 0 where nothing was measured."""
    return {
        "cache_n": report.cached_tokens,
        "prompt_n": report.prefilled_tokens,
        "prompt_ms": report.prompt_ms,
        "prompt_per_second": _rate(report.prefilled_tokens, report.prompt_ms),
        "predicted_n": report.completion_tokens,
        "predicted_ms": report.predicted_ms,
        "predicted_per_second": _rate(report.completion_tokens, report.predicted_ms),
    }


def session_block(report: TurnReport) -> Json:
    return {
        "session": report.session,
        "line": report.line,
        "turn": report.turn,
        "source": report.source,
        "cached_tokens": report.cached_tokens,
        "restored_tokens": report.restored_tokens,
        "prefilled_tokens": report.prefilled_tokens,
        "restore_ms": report.restore_ms,
        "ttft_ms": report.ttft_ms,
        "saved": report.saved,
        "miss": report.miss,
    }


def finish_reason(finished: Finished) -> str:
    """OpenAI knows no "cancelled"; to a client that is still there the reply was cut short."""
    reason = finished.report.finish_reason
    if reason == "stop":
        return "tool_calls" if calls(finished.parts) else "stop"
    return "length"


def _rate(count: int, ms: float) -> float:
    return count / ms * 1000 if ms > 0 else 0.0


def event(data: Json) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


class Reply(ABC):
    """One reply in the words of one OpenAI route, whole or as server-sent events.

    `model` is asked when the first word is written, since the model may still be loading before.
    A chunk's constant bytes are rendered once: the per-token path only quotes the text.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self, model: Callable[[], str], *, include_usage: bool = False, progress: bool = False
    ) -> None:
        self._model = model
        self._include_usage = include_usage
        self._progress = progress
        self._id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._head = self._tail = b""

    @abstractmethod
    def deltas(self, part: Part) -> list[Json]:
        """The fields of one or more choices that tell of `part`."""

    @abstractmethod
    def whole_choice(self, finished: Finished) -> Json:
        """The fields of the one choice of an answer."""

    @abstractmethod
    def logprobs(self, logprobs: Sequence[Logprob]) -> Json: ...

    @abstractmethod
    def nothing(self) -> Json:
        """The fields of a choice that says nothing."""

    def opening(self) -> bytes:
        """What precedes the first event."""
        return b""

    def alive(self) -> bytes:
        return _COMMENT

    def failed(self, failure: Failure) -> bytes:
        return event(failure.body())

    def progress(self, progress: Progress) -> bytes:
        if not self._progress:
            return b""
        report = {
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": progress.elapsed_ms,
        }
        return self._begun() + self.chunk([_choice(self.nothing())], prompt_progress=report)

    def spoken(self, spoken: Spoken) -> bytes:
        parts = spoken.parts
        if spoken.logprobs:
            return self._begun() + self._with_logprobs(spoken)
        if len(parts) == 1 and isinstance(said := parts[0], Said):
            opening = self._begun()
            return opening + self._head + orjson.dumps(said.text) + self._tail
        if not parts:
            return b""
        return self._begun() + b"".join(
            self.chunk([_choice(fields)]) for part in parts for fields in self.deltas(part)
        )

    def last(self, finished: Finished) -> bytes:
        """The end of a stream. Only the very last chunk carries the report."""
        closing = _choice(self.nothing(), finish=finish_reason(finished))
        report = finished.report
        told: Json = {"timings": timings(report), "sessiond": session_block(report)}
        if not self._include_usage:
            return self._begun() + self.chunk([closing], **told) + _DONE
        told["usage"] = usage(finished)
        return self._begun() + self.chunk([closing]) + self.chunk([], **told) + _DONE

    def whole(self, finished: Finished, logprobs: Sequence[Logprob] | None) -> Json:
        probabilities = None if logprobs is None else self.logprobs(logprobs)
        choice = _choice(self.whole_choice(finished), probabilities, finish_reason(finished))
        return {
            **self._heading(self.kind),
            "choices": [choice],
            "usage": usage(finished),
            "timings": timings(finished.report),
            "sessiond": session_block(finished.report),
        }

    def _with_logprobs(self, spoken: Spoken) -> bytes:
        """They go with the first of what is said with them, or alone."""
        told = [fields for part in spoken.parts for fields in self.deltas(part)]
        first, *others = told or [self.nothing()]
        chunks = [self.chunk([_choice(first, self.logprobs(spoken.logprobs))])]
        return b"".join(chunks + [self.chunk([_choice(fields)]) for fields in others])

    def chunk(self, choices: list[Json], **more: object) -> bytes:
        silence: Json = {"usage": None} if self._include_usage else {}
        return event({**self._heading(self.chunk_kind), "choices": choices, **silence, **more})

    def _heading(self, kind: str) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model(),
        }

    def _begun(self) -> bytes:
        """The opening, the first time; b"" after that."""
        if self._head:
            return b""
        chunk = self.chunk([_choice(self.deltas(Said(_MARK))[0])])
        self._head, self._tail = chunk.split(orjson.dumps(_MARK))
        return self.opening()


def _choice(fields: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
    return {"index": 0, **fields, "logprobs": logprobs, "finish_reason": finish}
