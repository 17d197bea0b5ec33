"""What the status page shows: how the daemon is, its history, and one session laid open."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from sessiond import __version__
from sessiond.api.answers import documented
from sessiond.api.routing import JsonRoute, SessionName, TheTurns, json_response
from sessiond.sessions.anatomy import Anatomy
from sessiond.sessions.gauges import Gauges
from sessiond.sessions.history import HistoryReport
from sessiond.sessions.turn import Health, SessionSummary

LISTED = 100
MOST_LISTED = 5_000
router = APIRouter(route_class=JsonRoute)

Listed = Annotated[int, Query(ge=0, le=MOST_LISTED)]


class StatusAnswer(BaseModel):
    """`now` in Unix seconds. `sessions` are those used last of `sessions_total`."""

    version: str
    now: float
    health: Health
    gauges: Gauges
    history: HistoryReport
    sessions: list[SessionSummary]
    sessions_total: int


@router.get("/status", responses=documented(StatusAnswer))
async def status(turns: TheTurns, sessions: Listed = LISTED) -> Response:
    """All that the page at / shows, with the `sessions` used last."""
    listed = await turns.summaries()
    return json_response(
        {
            "version": __version__,
            "now": time.time(),
            "health": await turns.health(),
            "gauges": await turns.gauges(),
            "history": await turns.history(),
            "sessions": listed[:sessions],
            "sessions_total": len(listed),
        }
    )


@router.get("/sessions/{name}/state", responses=documented(Anatomy))
async def session_state(name: SessionName, turns: TheTurns) -> Response:
    """Where the state of its main line lies, and what its last turn evaluated."""
    return json_response(await turns.anatomy(name))
