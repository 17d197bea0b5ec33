"""From a turn request to its answer, whole or streamed, for as long as the client stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sessiond.api.connection import ClientGone, while_connected
from sessiond.api.dialect import Dialect
from sessiond.api.identity import identify
from sessiond.api.routing import ApiConfig, json_response
from sessiond.api.sse import EventStream
from sessiond.engine.events import Logprob
from sessiond.errors import EngineError, InvalidRequest, ModelNotFound
from sessiond.sessions.turn import Finished, OpenTurn, SessionRef, Spoken, TurnRequest, Turns

CLIENT_CLOSED_REQUEST = 499
KEY_LENGTH = 255
_POLICIES = ("append-only", "fork")
_COMPACT = ("allow",)


def identity_of(request: Request, body: Mapping[str, object]) -> SessionRef:
    headers = {
        name.decode("latin-1"): value.decode(errors="surrogateescape")
        for name, value in request.headers.raw
    }
    return identify(request.path_params.get("session"), body, headers)


def policy_of(request: Request) -> str | None:
    """That of X-Session-Policy. Raises InvalidRequest."""
    return _choice(request, "X-Session-Policy", _POLICIES)


def may_compact(request: Request) -> bool:
    """Whether X-Session-Compact allows this request to rewrite history. Raises InvalidRequest."""
    return _choice(request, "X-Session-Compact", _COMPACT) is not None


def idempotency_key(request: Request) -> str | None:
    """Raises InvalidRequest."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 0 < len(key) <= KEY_LENGTH:
        raise InvalidRequest(
            "The Idempotency-Key is empty or too long.",
            hint=f"Use 1 to {KEY_LENGTH} characters.",
            param="Idempotency-Key",
        )
    return key


def turn_headers(*, rewrites: bool) -> dict[str, Any]:
    """For the OpenAPI document. `rewrites`: of a route whose requests have a history."""
    key: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH}
    known = {"X-Session-Id": {"type": "string"}, "Idempotency-Key": key}
    if rewrites:
        known["X-Session-Policy"] = {"type": "string", "enum": list(_POLICIES)}
        known["X-Session-Compact"] = {"type": "string", "enum": list(_COMPACT)}
    return {
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": schema}
            for name, schema in known.items()
        ]
    }


def _choice(request: Request, header: str, known: Sequence[str]) -> str | None:
    value = request.headers.get(header)
    if value is None or value.strip().lower() in known:
        return value and value.strip().lower()
    raise InvalidRequest(
        f"{header} is not {' or '.join(known)}.", hint="Correct it, or leave it out.", param=header
    )


async def model_namer(turns: Turns, config: ApiConfig, asked: str | None) -> Callable[[], str]:
    """Names the model in answers. With `strict_name`, waits for it and raises ModelNotFound."""
    if config.strict_name and asked is not None:
        await turns.served()
        if asked != turns.model_name and asked not in config.presets:
            raise ModelNotFound(
                f"There is no model {asked!r}.", hint=f"Use {turns.model_name!r}.", param="model"
            )
    return lambda: turns.model_name or asked or "unknown"


async def answer(
    request: Request,
    turns: Turns,
    wanted: TurnRequest,
    reply: Dialect,
    config: ApiConfig,
    *,
    stream: bool,
    on_open: Callable[[OpenTurn], None] = lambda opened: None,
) -> Response:
    try:
        if not stream:
            return await while_connected(request.receive, _whole(turns, wanted, reply, on_open))
        opened = await while_connected(request.receive, turns.open(wanted))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    on_open(opened)
    return EventStream(opened.events, reply, _headers(opened.session), keepalive=config.keepalive)


async def _whole(
    turns: Turns, wanted: TurnRequest, reply: Dialect, on_open: Callable[[OpenTurn], None]
) -> Response:
    opened = await turns.open(wanted)
    on_open(opened)
    finished, logprobs = await _collected(opened)
    body = reply.whole(finished, None if wanted.logprobs is None else logprobs)
    return json_response(body, headers=_headers(opened.session))


async def _collected(opened: OpenTurn) -> tuple[Finished, list[Logprob]]:
    finished: Finished | None = None
    logprobs: list[Logprob] = []
    async with aclosing(opened.events) as events:
        async for happened in events:
            if isinstance(happened, Spoken):
                logprobs.extend(happened.logprobs)
            elif isinstance(happened, Finished):
                finished = happened
    if finished is None:
        raise EngineError("The turn ended without a report.")
    return finished, logprobs


def _headers(session: str) -> dict[str, str]:
    """Header values are bytes on the wire; names travel as UTF-8, as X-Session-Id is read."""
    return {"X-Session-Id": session.encode().decode("latin-1")}
