"""GET /v1/models: the one model there is."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sessiond.api.connection import ClientGone, while_connected
from sessiond.api.generation import CLIENT_CLOSED_REQUEST
from sessiond.api.routing import TheTurns, json_response
from sessiond.sessions.turn import Turns

router = APIRouter()
_STARTED = int(time.time())


@router.get("/models")
async def models(request: Request, turns: TheTurns) -> Response:
    """Waits for the model: a client that sees an empty list may not ask again."""
    try:
        await while_connected(request.receive, turns.ready())
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return json_response({"object": "list", "data": [await _model(turns)]})


async def _model(turns: Turns) -> dict[str, object]:
    health = await turns.health()
    return {
        "id": turns.model_name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "sessiond",
        "meta": {"n_ctx": health.n_ctx, "n_ctx_train": health.n_ctx_train},
    }
