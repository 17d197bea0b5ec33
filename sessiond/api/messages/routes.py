"""POST /v1/messages, its count_tokens, and the HEAD / that Claude Code begins with."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from sessiond.api.answers import documented, refusals
from sessiond.api.connection import answered
from sessiond.api.generation import (
    answer,
    idempotency_key,
    identity_of,
    may_compact,
    model_namer,
    policy_of,
    turn_headers,
)
from sessiond.api.messages.answers import AnthropicError, AssistantTurn, TokenCount
from sessiond.api.messages.conversation import conversation
from sessiond.api.messages.marks import breakpoints, lifetime
from sessiond.api.messages.reply import MessagesReply, Wish
from sessiond.api.messages.schemas import MessagesRequest, Prompt
from sessiond.api.messages.tools import choice, definitions
from sessiond.api.presets import with_chosen
from sessiond.api.routing import Config, JsonRequest, JsonRoute, TheTurns, json_response
from sessiond.sessions.transcript import Content
from sessiond.sessions.turn import TurnRequest, Turns

router = APIRouter(route_class=JsonRoute, responses=refusals(AnthropicError))
probe_router = APIRouter()


@router.post(
    "/messages",
    responses=documented(AssistantTurn, streams=True),
    openapi_extra=turn_headers(rewrites=True),
)
async def messages(
    request: JsonRequest, body: MessagesRequest, turns: TheTurns, config: Config
) -> Response:
    raw = await request.json()
    namer = await model_namer(turns, config, body.model)
    body, options = with_chosen(body, {**raw, **body.effort()}, config.presets)
    tools = definitions(body.tools or ())
    wanted = TurnRequest(
        session=identity_of(request, raw),
        content=conversation(raw, tools, options),
        sampling=body.sampling(),
        ending=body.ending(),
        policy=policy_of(request),
        compact=may_compact(request),
        idempotency_key=idempotency_key(request),
        tool_choice=choice(body.tool_choice, tools),
        schema=body.schema_text(),
        grammar=body.grammar,
        breakpoints=breakpoints(raw),
    )
    wish = Wish(lifetime(raw), body.diagnostics is not None, not body.omits_thoughts)
    reply = MessagesReply(namer, wish)
    return await answer(request, turns, wanted, reply, config, stream=bool(body.stream))


@router.post("/messages/count_tokens", responses=documented(TokenCount))
async def count_tokens(
    request: JsonRequest, body: Prompt, turns: TheTurns, config: Config
) -> Response:
    """All tokens of the prompt, cached or not."""
    raw = await request.json()
    _, options = with_chosen(body, {**raw, **body.effort()}, config.presets)
    content = conversation(raw, definitions(body.tools or ()), options)
    await model_namer(turns, config, body.model)
    return await answered(request.receive, _counted(turns, content))


async def _counted(turns: Turns, content: Content) -> Response:
    return json_response({"input_tokens": await turns.count(content)})


@probe_router.head("/", response_class=Response)
async def probe() -> Response:
    """Whether there is anybody."""
    return Response()
