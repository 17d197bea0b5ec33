"""POST /v1/completions: a raw prompt, no chat template."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.responses import Response

from sessiond.api.answers import Completion, documented
from sessiond.api.dialect import Json
from sessiond.api.generation import (
    answer,
    idempotency_key,
    identity_of,
    model_namer,
    turn_headers,
)
from sessiond.api.logprobs import completion_logprobs
from sessiond.api.presets import with_preset
from sessiond.api.reply import Reply
from sessiond.api.routing import Config, JsonRequest, JsonRoute, TheTurns
from sessiond.api.schemas import CompletionRequest
from sessiond.engine.events import Logprob
from sessiond.sessions.parts import Part, Said
from sessiond.sessions.transcript import read_text
from sessiond.sessions.turn import Finished, TurnRequest

router = APIRouter(route_class=JsonRoute)


class CompletionReply(Reply):
    prefix = "cmpl"
    kind = "text_completion"
    chunk_kind = "text_completion"
    _offset = 0

    def deltas(self, part: Part) -> list[Json]:
        return [{"text": part.text}] if isinstance(part, Said) else []

    def whole_choice(self, finished: Finished) -> Json:
        return {"text": finished.text}

    def nothing(self) -> Json:
        return {"text": ""}

    def logprobs(self, logprobs: Sequence[Logprob]) -> Json:
        block, self._offset = completion_logprobs(logprobs, self._offset)
        return block


@router.post(
    "/completions",
    responses=documented(Completion, streams=True),
    openapi_extra=turn_headers(rewrites=False),
)
async def completions(
    request: JsonRequest, body: CompletionRequest, turns: TheTurns, config: Config
) -> Response:
    body = with_preset(body, config.presets.get(body.model or ""))
    namer = await model_namer(turns, config, body.model)
    wanted = TurnRequest(
        session=identity_of(request, await request.json()),
        content=read_text(body.prompt),
        sampling=body.sampling(),
        ending=body.ending(),
        logprobs=body.logprobs,
        idempotency_key=idempotency_key(request),
        schema=body.schema_text(),
        grammar=body.grammar,
    )
    reply = CompletionReply(
        namer, include_usage=body.include_usage, progress=bool(body.return_progress)
    )
    return await answer(request, turns, wanted, reply, config, stream=bool(body.stream))
