"""One streamed chat completion of any OpenAI-compatible server, as an agent reads it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from scripts.daemon import Json, events

CHAT = "/v1/chat/completions"


class Refused(Exception):
    """The server did not answer a request; the message says what it said instead."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`ttft_ms` is from before sending to the first words, thoughts or call that came.

    `evaluated` are the prompt tokens that the model read: None where the server does not say.
    """

    text: str
    reasoning: str
    calls: tuple[Json, ...]
    finish_reason: str
    ttft_ms: float
    total_ms: float
    sent: int
    drawn: int
    evaluated: int | None
    source: str = ""
    miss: str = ""

    def kept(self, *, drops: bool) -> Json:
        """As an agent sends it back; it may drop the reasoning. Calls cut off are not kept."""
        message: Json = {"role": "assistant", "content": self.text}
        if self.reasoning and not drops:
            message["reasoning_content"] = self.reasoning
        if self.calls and self.finish_reason != "length":
            message["tool_calls"] = list(self.calls)
        return message


@dataclass(slots=True)
class _Heard:
    """What has come of a reply so far."""

    text: str = ""
    reasoning: str = ""
    calls: dict[int, Json] = field(default_factory=dict)
    finish_reason: str = ""
    told: Json = field(default_factory=dict)

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.finish_reason)

    def take(self, event: Json) -> None:
        for name in ("sessiond", "timings", "usage"):
            if event.get(name):
                self.told[name] = event[name]
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            self.text += delta.get("content") or ""
            self.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_call(self, delta: Json) -> None:
        empty: Json = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.calls.setdefault(int(delta.get("index", 0)), empty)
        call["id"] += delta.get("id") or ""
        for name in ("name", "arguments"):
            call["function"][name] += delta.get("function", {}).get(name) or ""


def ask(http: httpx.Client, body: Json, session: str | None) -> Reply:
    """Raises Refused."""
    asked = {**body, "model": "any", "stream": True, "stream_options": {"include_usage": True}}
    headers = {"X-Session-Id": session} if session else {}
    began = time.perf_counter()
    try:
        with http.stream("POST", CHAT, json=asked, headers=headers) as answer:
            if answer.is_error:
                raise Refused(f"{answer.status_code} {answer.read().decode(errors='replace')}")
            return _read(answer.iter_bytes(), began)
    except httpx.TransportError as error:
        raise Refused(f"the connection broke off: {error!r}") from error


def _read(chunks: Iterable[bytes], began: float) -> Reply:
    heard, first = _Heard(), 0.0
    for event in events(iter(chunks)):
        if "error" in event:
            raise Refused(f"the stream broke off: {event['error']}")
        heard.take(event)
        if not first and heard.says_something:
            first = time.perf_counter()
    ended = time.perf_counter()
    usage: Json = heard.told.get("usage", {})
    if not heard.finish_reason or "prompt_tokens" not in usage:
        raise Refused("the stream ended without a finish_reason and usage")
    ours: Json = heard.told.get("sessiond", {})
    return Reply(
        text=heard.text,
        reasoning=heard.reasoning,
        calls=tuple(heard.calls[number] for number in sorted(heard.calls)),
        finish_reason=heard.finish_reason,
        ttft_ms=((first or ended) - began) * 1e3,
        total_ms=(ended - began) * 1e3,
        sent=int(usage["prompt_tokens"]),
        drawn=int(usage["completion_tokens"]),
        evaluated=_evaluated(heard.told),
        source=ours.get("source") or "",
        miss=(ours.get("miss") or {}).get("cause", ""),
    )


def _evaluated(told: dict[str, Any]) -> int | None:
    """What llama-server and sessiond measure, else what OpenAI's usage says was not cached."""
    if "prompt_n" in told.get("timings", {}):
        return int(told["timings"]["prompt_n"])
    cached = (told["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
    return None if cached is None else int(told["usage"]["prompt_tokens"]) - int(cached)
