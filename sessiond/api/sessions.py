"""/v1/sessions: what people and the command line do with sessions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from sessiond.api.answers import Explained, SessionList, Transcript, TurnList, documented
from sessiond.api.identity import session_name
from sessiond.api.routing import JsonRoute, SessionName, TheTurns, json_response
from sessiond.api.session_schemas import SessionCreate, SessionFork, SessionUpdate
from sessiond.sessions.turn import ResumeReport, SessionSummary

EXPLAINED = 16
router = APIRouter(prefix="/sessions", route_class=JsonRoute)


@router.get("", responses=documented(SessionList))
async def list_sessions(turns: TheTurns) -> Response:
    return json_response({"sessions": await turns.summaries()})


@router.post("", status_code=201, responses=documented(SessionSummary, 201))
async def create_session(body: SessionCreate, turns: TheTurns) -> Response:
    name = session_name(body.name, param="name")
    return json_response(await turns.create(name, body.change()), 201)


@router.get("/{name}", responses=documented(SessionSummary))
async def show_session(name: SessionName, turns: TheTurns) -> Response:
    return json_response(await turns.summary(name))


@router.patch("/{name}", responses=documented(SessionSummary))
async def update_session(name: SessionName, body: SessionUpdate, turns: TheTurns) -> Response:
    return json_response(await turns.update(name, body.change()))


@router.delete("/{name}", status_code=204)
async def delete_session(name: SessionName, turns: TheTurns) -> Response:
    await turns.delete(name)
    return Response(status_code=204)


@router.post("/{name}/resume", responses=documented(ResumeReport))
async def resume_session(name: SessionName, turns: TheTurns) -> Response:
    return json_response(await turns.resume(name))


@router.post("/{name}/park", responses=documented(SessionSummary))
async def park_session(name: SessionName, turns: TheTurns) -> Response:
    return json_response(await turns.park(name))


@router.post("/{name}/fork", status_code=201, responses=documented(SessionSummary, 201))
async def fork_session(name: SessionName, body: SessionFork, turns: TheTurns) -> Response:
    new = session_name(body.name, param="name")
    return json_response(await turns.fork(name, new, body.at), 201)


@router.post("/{name}/compact", responses=documented(SessionSummary))
async def compact_session(name: SessionName, turns: TheTurns) -> Response:
    return json_response(await turns.compact(name))


@router.get("/{name}/explain", responses=documented(Explained))
async def explain_session(name: SessionName, turns: TheTurns) -> Response:
    """The last rewrites, and the last turns that evaluated old tokens again."""
    rewrites = await turns.explain(name)
    missed = [turn for turn in await turns.turns(name) if turn.miss is not None]
    return json_response({"rewrites": rewrites, "misses": missed[-EXPLAINED:]})


@router.get("/{name}/turns", responses=documented(TurnList))
async def list_turns(name: SessionName, turns: TheTurns) -> Response:
    return json_response({"turns": await turns.turns(name)})


@router.get("/{name}/transcript", responses=documented(Transcript))
async def show_transcript(name: SessionName, turns: TheTurns) -> Response:
    return json_response({"messages": await turns.transcript(name)})
