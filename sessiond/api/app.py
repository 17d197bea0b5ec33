"""The application: every route, its errors and its guards."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI
from starlette.types import Scope

from sessiond import __version__
from sessiond.api import (
    chat,
    completions,
    errors,
    models,
    operations,
    props,
    sessions,
    status,
    tokens,
    transfer,
)
from sessiond.api.answers import ErrorBody, refusals
from sessiond.api.guards import Guard
from sessiond.api.identity import session_name
from sessiond.api.messages import routes as messages
from sessiond.api.page import routes as page
from sessiond.api.responses import retrieval
from sessiond.api.responses import routes as responses
from sessiond.api.routing import ApiConfig, NamePath
from sessiond.api.upload import Uploads
from sessiond.sessions.turn import Turns


def create_app(turns: Turns, config: ApiConfig) -> FastAPI:
    """Answers from `turns`, all on the event loop that runs it.

    What `app.state.config` is set to later holds for the requests that come then.
    """
    app = FastAPI(
        title="sessiond",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=refusals(ErrorBody),
    )
    app.state.turns = turns
    app.state.config = config
    app.state.uploads = Uploads()
    app.add_middleware(Guard)
    errors.install(app)
    app.include_router(operations.health_router)
    app.include_router(operations.metrics_router)
    app.include_router(messages.probe_router)
    app.include_router(page.router)
    app.include_router(_version_one(), prefix="/v1")
    app.include_router(_helpers())
    app.include_router(_helpers(), prefix="/s/{session}", dependencies=[Depends(_session_in_path)])
    app.include_router(
        _version_one(), prefix="/s/{session}/v1", dependencies=[Depends(_session_in_path)]
    )
    _build_routes(app)
    return app


def _build_routes(app: FastAPI) -> None:
    """FastAPI builds a router when a path is first looked up in it: before the first turn, then."""
    for path in ("/v1/models", "/s/any/v1/models"):
        scope: Scope = {"type": "http", "method": "GET", "path": path, "root_path": ""}
        for route in app.router.routes:
            route.matches(scope)


def _version_one() -> APIRouter:
    router = APIRouter()
    router.include_router(chat.router)
    router.include_router(completions.router)
    router.include_router(messages.router)
    router.include_router(responses.router)
    router.include_router(retrieval.router)
    router.include_router(models.router)
    router.include_router(sessions.router)
    router.include_router(transfer.router)
    router.include_router(status.router)
    router.include_router(operations.health_router)
    router.include_router(operations.verify_router)
    return router


def _helpers() -> APIRouter:
    """Those of llama-server."""
    router = APIRouter()
    router.include_router(props.router)
    router.include_router(tokens.router)
    return router


async def _session_in_path(session: NamePath) -> None:
    """Also of the routes that have no use for it."""
    session_name(session, param="session")
