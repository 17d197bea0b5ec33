"""Health, metrics, and the check of everything that is stored."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from sessiond.api.answers import Documented, ErrorBody, Verified, documented, refusals
from sessiond.api.routing import TheTurns, json_response
from sessiond.metrics import REGISTRY
from sessiond.sessions.report import observe
from sessiond.sessions.turn import Health

health_router = APIRouter()
metrics_router = APIRouter()
verify_router = APIRouter()

# FastAPI would document errors of a route that answers in plain text as plain text.
_ERROR = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}}
_REFUSED: Documented = {
    kind: {"description": told["description"], "content": _ERROR}
    for kind, told in refusals(ErrorBody).items()
}


@health_router.get("/health", responses={**documented(Health), **documented(Health, 503)})
async def health(turns: TheTurns) -> Response:
    """200 when turns are answered at once, or once an unloaded model is loaded again; else 503.

    The same JSON in both cases.
    """
    now = await turns.health()
    return json_response(now, 200 if now.status in ("ok", "unloaded") else 503)


@metrics_router.get("/metrics", response_class=PlainTextResponse, responses=_REFUSED)
async def metrics(turns: TheTurns) -> Response:
    observe(await turns.health())
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


@verify_router.post("/verify", responses=documented(Verified))
async def verify(turns: TheTurns) -> Response:
    report = await turns.verify()
    return json_response({**asdict(report), "clean": report.clean})
