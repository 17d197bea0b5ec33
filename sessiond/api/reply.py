"""How a turn's report and its tokens are worded: usage, timings, the sessiond block, chunks."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import orjson

from sessiond.engine.events import Delta, Logprob, Progress
from sessiond.sessions.turn import Finished, TurnReport

Json = dict[str, Any]

_MARK = "\x00"
_DONE = b"data: [DONE]\n\n"


def usage(report: TurnReport) -> Json:
    return {
        "prompt_tokens": report.prompt_tokens,
        "completion_tokens": report.completion_tokens,
        "total_tokens": report.prompt_tokens + report.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": report.cached_tokens},
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


def finish_reason(report: TurnReport) -> str:
    """OpenAI knows no "cancelled"; to a client that is still there the reply was cut short."""
    return "length" if report.finish_reason == "cancelled" else report.finish_reason


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
    def choice(self, text: str, logprobs: Json | None, finish: str | None) -> Json:
        """A choice of a chunk; `finish` set means the last one, without text."""

    @abstractmethod
    def whole_choice(self, text: str, logprobs: Json | None, finish: str) -> Json: ...

    @abstractmethod
    def logprobs(self, logprobs: Sequence[Logprob]) -> Json: ...

    def opening(self) -> bytes:
        """What precedes the first event."""
        return b""

    def progress(self, progress: Progress) -> bytes:
        if not self._progress:
            return b""
        report = {
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": progress.elapsed_ms,
        }
        return self._begun() + self.chunk([self.choice("", None, None)], prompt_progress=report)

    def delta(self, delta: Delta) -> bytes:
        """b"" where there is nothing to say yet."""
        if delta.logprobs:
            choice = self.choice(delta.text, self.logprobs(delta.logprobs), None)
            return self._begun() + self.chunk([choice])
        if not delta.text:
            return b""
        opening = self._begun()
        return opening + self._head + orjson.dumps(delta.text) + self._tail

    def last(self, finished: Finished) -> bytes:
        """The end of a stream. Only the very last chunk carries the report."""
        report = finished.report
        closing = self.choice("", None, finish_reason(report))
        told: Json = {"timings": timings(report), "sessiond": session_block(report)}
        if not self._include_usage:
            return self._begun() + self.chunk([closing], **told) + _DONE
        told["usage"] = usage(report)
        return self._begun() + self.chunk([closing]) + self.chunk([], **told) + _DONE

    def whole(self, finished: Finished, logprobs: Sequence[Logprob] | None) -> Json:
        report = finished.report
        probabilities = None if logprobs is None else self.logprobs(logprobs)
        return {
            **self._heading(self.kind),
            "choices": [self.whole_choice(finished.text, probabilities, finish_reason(report))],
            "usage": usage(report),
            "timings": timings(report),
            "sessiond": session_block(report),
        }

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
        chunk = self.chunk([self.choice(_MARK, None, None)])
        self._head, self._tail = chunk.split(orjson.dumps(_MARK))
        return self.opening()
