"""Health, metrics, and the check of everything that is stored."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from sessiond.api.routing import TheTurns, json_response
from sessiond.metrics import REGISTRY

health_router = APIRouter()
metrics_router = APIRouter()
verify_router = APIRouter()


@health_router.get("/health")
async def health(turns: TheTurns) -> Response:
    """200 when turns are answered at once, else 503; the same JSON in both cases."""
    now = await turns.health()
    return json_response(now, 200 if now.status == "ok" else 503)


@metrics_router.get("/metrics")
async def metrics() -> Response:
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


@verify_router.post("/verify")
async def verify(turns: TheTurns) -> Response:
    report = await turns.verify()
    return json_response({**asdict(report), "clean": report.clean})
