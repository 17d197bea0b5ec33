"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.responses import Response

from sessiond.api.conversation import conversation
from sessiond.api.generation import (
    answer,
    idempotency_key,
    identity_of,
    may_compact,
    model_namer,
    policy_of,
)
from sessiond.api.logprobs import chat_logprobs
from sessiond.api.reply import Json, Reply
from sessiond.api.routing import Config, JsonRequest, JsonRoute, TheTurns
from sessiond.api.schemas import ChatRequest
from sessiond.engine.events import Logprob
from sessiond.sessions.turn import TurnRequest

router = APIRouter(route_class=JsonRoute)


class ChatReply(Reply):
    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self.chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def choice(self, text: str, logprobs: Json | None, finish: str | None) -> Json:
        delta = {} if finish else {"content": text}
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def whole_choice(self, text: str, logprobs: Json | None, finish: str) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(self, logprobs: Sequence[Logprob]) -> Json:
        return chat_logprobs(logprobs)


@router.post("/chat/completions")
async def chat_completions(
    request: JsonRequest, body: ChatRequest, turns: TheTurns, config: Config
) -> Response:
    raw = await request.json()
    namer = await model_namer(turns, config, body.model)
    wanted = TurnRequest(
        session=identity_of(request, raw),
        content=conversation(raw),
        sampling=body.sampling(),
        ending=body.ending(),
        logprobs=body.alternatives(),
        policy=policy_of(request),
        compact=may_compact(request),
        idempotency_key=idempotency_key(request),
    )
    reply = ChatReply(namer, include_usage=body.include_usage, progress=bool(body.return_progress))
    return await answer(request, turns, wanted, reply, config, stream=bool(body.stream))
