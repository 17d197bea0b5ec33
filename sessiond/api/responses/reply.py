"""A turn in the words of the Responses API, whole or as its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from sessiond.api.dialect import Json
from sessiond.api.failure import Failure
from sessiond.api.logprobs import chat_logprobs
from sessiond.api.reply import session_block, timings
from sessiond.api.responses.answer import Heading, Spent, Status, ending
from sessiond.api.responses.errors import named
from sessiond.api.responses.items import text_part
from sessiond.api.responses.output import Output
from sessiond.engine.events import Logprob, Progress
from sessiond.sessions.parts import said
from sessiond.sessions.turn import Finished, OpenTurn, Spoken

_TOO_LONG = "context_length_exceeded"
"""Codex compacts at this; what is no fault of the request it tries again."""


class ResponseReply:
    """A Dialect. `model` is asked when something is said: it may still be loading before."""

    def __init__(
        self, heading: Heading, model: Callable[[], str], *, progress: bool = False
    ) -> None:
        self._heading = heading
        self._model = model
        self._progress = progress
        self._number = 0
        self._begun = False
        self._output = Output(heading.wording, self._tell)
        self._logprobs: list[Logprob] = []

    def opened(self, turn: OpenTurn) -> None:
        """Before anything is said: a turn that was begun by an earlier try has that one's id."""
        if turn.response_id is not None:
            wording = replace(self._heading.wording, response=turn.response_id)
            self._heading = replace(self._heading, wording=wording)
            self._output = Output(wording, self._tell)

    def progress(self, progress: Progress) -> bytes:
        opening = self._opening()
        if not self._progress:
            return opening
        report = {
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": progress.elapsed_ms,
        }
        return opening + self._in_progress(prompt_progress=report)

    def alive(self) -> bytes:
        return self._opening() or self._in_progress()

    def spoken(self, spoken: Spoken) -> bytes:
        self._logprobs += spoken.logprobs
        events = [self._opening()] if spoken.parts else []
        for part in spoken.parts:
            told = chat_logprobs(self._logprobs)["content"] if self._logprobs else ()
            events.append(self._output.add(part, told))
            self._logprobs = []
        return b"".join(events)

    def last(self, finished: Finished) -> bytes:
        status, more = ending(finished.report.finish_reason)
        events = self._opening() + self._output.nothing() + self._output.close(status)
        whole = self._whole(finished, status, self._output.items, **more)
        return events + self._tell(f"response.{status}", response=whole)

    def failed(self, failure: Failure) -> bytes:
        failure = named(failure)
        error = {
            "code": _code(failure),
            "message": _told(failure),
            "type": failure.code,
            "param": failure.param,
            **failure.details,
        }
        body = self._body("failed", self._output.items, error=error)
        return self._opening() + self._tell("response.failed", response=body)

    def whole(self, finished: Finished, logprobs: Sequence[Logprob] | None) -> Json:
        status, more = ending(finished.report.finish_reason)
        items = self._heading.wording.items(finished.parts, cut=status == "incomplete")
        if logprobs:
            items = _with_logprobs(items, said(finished.parts), logprobs)
        return self._whole(finished, status, items, **more)

    def _whole(
        self, finished: Finished, status: Status, items: Sequence[Json], **more: object
    ) -> Json:
        report = finished.report
        spent = Spent(
            report.prompt_tokens,
            report.cached_tokens,
            report.prefilled_tokens,
            report.completion_tokens,
            finished.reasoning_tokens,
            report.miss,
        )
        told = {"timings": timings(report), "sessiond": session_block(report)}
        return self._body(status, items, **spent.told(), **told, **more)

    def _opening(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        body = self._body("in_progress", [])
        return self._tell("response.created", response=body) + self._in_progress()

    def _in_progress(self, **more: object) -> bytes:
        body = self._body("in_progress", self._output.items)
        return self._tell("response.in_progress", response=body, **more)

    def _body(self, status: Status, items: Sequence[Json], **more: object) -> Json:
        return self._heading.body(status, self._model(), items, **more)

    def _tell(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


def _code(failure: Failure) -> str:
    if failure.status >= 500:
        return "server_error"
    if failure.status == 429:
        return "rate_limit_exceeded"
    return _TOO_LONG if failure.code == _TOO_LONG else "invalid_prompt"


def _told(failure: Failure) -> str:
    """With the seconds to wait, as clients look for them in the words."""
    seconds = failure.headers.get("Retry-After")
    return f"{failure.told} Please try again in {seconds}s." if seconds else failure.told


def _with_logprobs(items: list[Json], text: str, logprobs: Sequence[Logprob]) -> list[Json]:
    """Those of the words, where they are all in one message, and at its end in the reply."""
    messages = [item for item in items if item["type"] == "message"]
    tokens, left = len(logprobs), len(text)
    while tokens and left > 0:
        tokens -= 1
        left -= len(logprobs[tokens].chosen.text)
    if len(messages) != 1 or left or messages[0] is not items[-1]:
        return items
    told = chat_logprobs(logprobs[tokens:])["content"]
    return [*items[:-1], {**messages[0], "content": [text_part(text, told)]}]
