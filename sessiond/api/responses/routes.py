"""POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sessiond.api.answers import documented
from sessiond.api.dialect import Json
from sessiond.api.generation import (
    answer,
    idempotency_key,
    identity_of,
    may_compact,
    model_namer,
    policy_of,
    turn_headers,
)
from sessiond.api.presets import with_chosen
from sessiond.api.responses.answer import Heading
from sessiond.api.responses.answers import ResponseObject
from sessiond.api.responses.ids import new_response_id
from sessiond.api.responses.items import Wording
from sessiond.api.responses.previous import history, previous_response, resolved
from sessiond.api.responses.reading import messages_of
from sessiond.api.responses.reply import ResponseReply
from sessiond.api.responses.schemas import ResponseRequest
from sessiond.api.responses.tools import choice, definitions, flat, namespaces
from sessiond.api.routing import Config, JsonRequest, JsonRoute, TheTurns
from sessiond.errors import InvalidRequest
from sessiond.sessions.transcript import read_chat
from sessiond.sessions.turn import SessionRef, StoredResponse, TurnRequest

router = APIRouter(route_class=JsonRoute)
_WEAKER = ("previous_response_id", "prompt_cache_key", "user", "id_slot")
"""Signs of a session that count less than the response a request goes on from."""


@router.post(
    "/responses",
    responses=documented(ResponseObject, streams=True),
    openapi_extra=turn_headers(rewrites=True),
)
async def create_response(
    request: JsonRequest, body: ResponseRequest, turns: TheTurns, config: Config
) -> Response:
    raw: Json = await request.json()
    body, options = with_chosen(body, raw, config.presets)
    namer = await model_namer(turns, config, body.model)
    previous = await previous_response(turns, body.previous_response_id)
    tools, spaces = definitions(body.tools or ()), namespaces(body.tools or ())
    items = messages_of(await resolved(turns, raw["input"]))
    chat = read_chat(_messages(body, previous, items), tools, options)
    identity, created, echoed = new_response_id(), int(time.time()), body.echoed(raw)
    wanted = TurnRequest(
        session=_session(request, raw, previous),
        content=chat,
        sampling=body.sampling(),
        ending=body.ending(),
        logprobs=body.alternatives(),
        policy=policy_of(request),
        compact=may_compact(request),
        idempotency_key=idempotency_key(request),
        tool_choice=choice(body.tool_choice, body.parallel_tool_calls is not False, tools),
        schema=body.reply_schema(),
        response_id=identity if body.stored else None,
        response=_kept(body, created, echoed, spaces),
    )
    heading = Heading(
        wording=Wording(identity, body.summarises, body.encrypts, spaces),
        created=created,
        instructions=body.instructions,
        tools=[flat(tool) for tool in chat.tools],
        echoed=echoed,
    )
    reply = ResponseReply(heading, namer, progress=bool(body.return_progress))
    return await answer(
        request, turns, wanted, reply, config, stream=bool(body.stream), on_open=reply.opened
    )


def _messages(
    body: ResponseRequest, previous: StoredResponse | None, new: list[Json]
) -> list[Json]:
    """Raises InvalidRequest."""
    if not new:
        raise InvalidRequest("input is empty.", hint="Say something.", param="input")
    front = [{"role": "system", "content": body.instructions}] if body.instructions else []
    return [*front, *(history(previous) if previous else ()), *new]


def _session(request: Request, raw: Json, previous: StoredResponse | None) -> SessionRef:
    """That of the previous response, unless the request names another by a stronger sign."""
    if previous is None:
        return identity_of(request, raw)
    stronger = {name: value for name, value in raw.items() if name not in _WEAKER}
    found = identity_of(request, stronger)
    return replace(found, name=found.name or previous.session)


def _kept(
    body: ResponseRequest, created: int, echoed: Mapping[str, object], spaces: Mapping[str, str]
) -> str:
    """JSON of what retrieving the response needs beside the turn."""
    if not body.stored:
        return "{}"
    kept = {
        "created": created,
        "echoed": echoed,
        "instructed": bool(body.instructions),
        "summarises": body.summarises,
        "encrypts": body.encrypts,
        "namespaces": spaces,
    }
    return orjson.dumps(kept).decode()
