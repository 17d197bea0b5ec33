"""A reply as it is streamed: pieces of text, then its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sessiond.client.answers import Json, RequestFailed, read
from sessiond.sessions.turn import Miss


@dataclass(frozen=True, slots=True)
class ChatText:
    """A piece of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The end of a reply, in tokens and milliseconds. `ttft_ms` is the time to the first token."""

    session: str
    line: str
    turn: int
    source: str
    cached_tokens: int
    restored_tokens: int
    prefilled_tokens: int
    restore_ms: float
    ttft_ms: float
    saved: bool
    finish_reason: str
    completion_tokens: int
    miss: Miss | None = None


def events(chunks: Iterator[bytes]) -> Iterator[Json]:
    """The data of each server-sent event, up to `[DONE]`.

    Lines end at newline bytes only: httpx's own line iterator also splits at U+2028 inside text.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:") and data:
                yield _event(data)


def _event(data: bytes) -> Json:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise RequestFailed("The daemon's stream holds an event that is no JSON.", answered=200)
    return event


def reply(happened: Iterator[Json]) -> Iterator[ChatText | ChatEnd]:
    """Raises RequestFailed for an error in the stream, and where it has no end."""
    reason, tokens, report = "", 0, None
    for event in happened:
        if error := event.get("error"):
            message = error.get("message", error) if isinstance(error, dict) else error
            raise RequestFailed(str(message), answered=200)
        for choice in event.get("choices", ()):
            if text := choice.get("delta", {}).get("content"):
                yield ChatText(text)
            reason = choice.get("finish_reason") or reason
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        report = event.get("sessiond") or report
    if report is None:
        raise RequestFailed("The reply ended before it was complete.", answered=200)
    yield read(ChatEnd, {**report, "finish_reason": reason, "completion_tokens": tokens})
