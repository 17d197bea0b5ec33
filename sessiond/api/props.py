"""GET /props: what clients of llama-server read before they begin."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sessiond import __version__
from sessiond.api.answers import Props, documented
from sessiond.api.connection import answered
from sessiond.api.routing import TheTurns, json_response
from sessiond.engine.sampling import Sampling
from sessiond.sessions.text import Served
from sessiond.sessions.turn import Turns

router = APIRouter()
_DRAWN = 2**32 - 1
"""llama.cpp's seed for one that is drawn."""


@router.get("/props", responses=documented(Props))
async def props(request: Request, turns: TheTurns) -> Response:
    """Waits for the model at the start. `n_ctx`: the most tokens one conversation can have."""
    return await answered(request.receive, _props(turns))


async def _props(turns: Turns) -> Response:
    return json_response(_facts(await turns.served()))


def _facts(served: Served) -> dict[str, object]:
    return {
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": served.n_ctx,
            "speculative": False,
            "is_processing": False,
            "params": _sampling(),
        },
        "total_slots": served.lines,
        "model_alias": served.model,
        "model_path": served.path,
        "modalities": {"vision": False, "audio": False},
        "chat_template": served.template,
        "bos_token": served.bos,
        "eos_token": served.eos,
        "build_info": f"sessiond {__version__}",
    }


def _sampling() -> dict[str, object]:
    """What holds where a request says nothing."""
    defaults = asdict(Sampling())
    biases = [list(pair) for pair in defaults.pop("logit_bias")]
    return {**defaults, "seed": _DRAWN, "logit_bias": biases, "max_tokens": -1, "stop": []}
