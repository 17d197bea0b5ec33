"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.responses import Response

from sessiond.api.answers import ChatCompletion, documented
from sessiond.api.conversation import conversation
from sessiond.api.dialect import Json
from sessiond.api.generation import (
    answer,
    idempotency_key,
    identity_of,
    may_compact,
    model_namer,
    policy_of,
    turn_headers,
)
from sessiond.api.logprobs import chat_logprobs
from sessiond.api.presets import with_chosen
from sessiond.api.reply import Reply
from sessiond.api.routing import Config, JsonRequest, JsonRoute, TheTurns
from sessiond.api.schemas import ChatRequest
from sessiond.engine.events import Logprob
from sessiond.sessions.parts import Called, Part, Said, Thought, calls, said, thought
from sessiond.sessions.turn import Finished, TurnRequest

router = APIRouter(route_class=JsonRoute)


class ChatReply(Reply):
    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    _calls = 0

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self.chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def deltas(self, part: Part) -> list[Json]:
        if isinstance(part, Said):
            return [{"delta": {"content": part.text}}]
        if isinstance(part, Thought):
            return [{"delta": {"reasoning_content": part.text}}]
        number, self._calls = self._calls, self._calls + 1
        begun = {"index": number, **_call(part, "")}
        arguments = {"index": number, "function": {"arguments": part.arguments}}
        return [{"delta": {"tool_calls": [begun]}}, {"delta": {"tool_calls": [arguments]}}]

    def whole_choice(self, finished: Finished) -> Json:
        made = [_call(call, call.arguments) for call in calls(finished.parts)]
        message: Json = {
            "role": "assistant",
            "content": said(finished.parts) or (None if made else ""),
            "refusal": None,
        }
        if reasoning := thought(finished.parts):
            message["reasoning_content"] = reasoning
        if made:
            message["tool_calls"] = made
        return {"message": message}

    def nothing(self) -> Json:
        return {"delta": {}}

    def logprobs(self, logprobs: Sequence[Logprob]) -> Json:
        return chat_logprobs(logprobs)


def _call(call: Called, arguments: str) -> Json:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


@router.post(
    "/chat/completions",
    responses=documented(ChatCompletion, streams=True),
    openapi_extra=turn_headers(rewrites=True),
)
async def chat_completions(
    request: JsonRequest, body: ChatRequest, turns: TheTurns, config: Config
) -> Response:
    raw = await request.json()
    body, options = with_chosen(body, raw, config.presets)
    namer = await model_namer(turns, config, body.model)
    wanted = TurnRequest(
        session=identity_of(request, raw),
        content=conversation({**raw, "chat_template_kwargs": options}),
        sampling=body.sampling(),
        ending=body.ending(),
        logprobs=body.alternatives(),
        policy=policy_of(request),
        compact=may_compact(request),
        idempotency_key=idempotency_key(request),
        tool_choice=body.choice(),
        schema=body.schema_text(),
        grammar=body.grammar,
        raw_reasoning=body.reasoning_format == "none",
    )
    reply = ChatReply(namer, include_usage=body.include_usage, progress=bool(body.return_progress))
    return await answer(request, turns, wanted, reply, config, stream=bool(body.stream))
