"""GET /v1/models: the one model there is, and each preset under a name of its own."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from sessiond.api.answers import ModelList, ServedModel, documented
from sessiond.api.connection import answered
from sessiond.api.routing import ApiConfig, Config, TheTurns, json_response
from sessiond.errors import ModelNotFound
from sessiond.sessions.turn import Turns

router = APIRouter()
_STARTED = int(time.time())


@router.get("/models", responses=documented(ModelList))
async def models(request: Request, turns: TheTurns, config: Config) -> Response:
    """Waits for the model at the start: who sees an empty list may not ask again."""
    return await answered(request.receive, _list(turns, config))


@router.get("/models/{model:path}", responses=documented(ServedModel))
async def model(
    model: Annotated[str, Path(max_length=512)], request: Request, turns: TheTurns, config: Config
) -> Response:
    """A name may have slashes in it."""
    return await answered(request.receive, _one(turns, config, model))


async def _list(turns: Turns, config: ApiConfig) -> Response:
    return json_response({"object": "list", "data": await _models(turns, config)})


async def _one(turns: Turns, config: ApiConfig, name: str) -> Response:
    listed = await _models(turns, config)
    for one in listed:
        if one["id"] == name:
            return json_response(one)
    names = ", ".join(repr(one["id"]) for one in listed)
    raise ModelNotFound(f"There is no model {name!r}.", hint=f"There are: {names}.", param="model")


async def _models(turns: Turns, config: ApiConfig) -> list[dict[str, object]]:
    await turns.served()
    health = await turns.health()
    meta = {"n_ctx": _line(health.n_ctx, health.n_ctx_train), "n_ctx_train": health.n_ctx_train}
    names = dict.fromkeys((turns.model_name, *config.presets))
    return [
        {
            "id": name,
            "object": "model",
            "created": _STARTED,
            "owned_by": "sessiond",
            "meta": meta,
        }
        for name in names
    ]


def _line(pool: int | None, trained: int | None) -> int | None:
    """The most tokens of one conversation, which agents take for their context size."""
    return pool if pool is None or trained is None else min(pool, trained)
