"""POST /tokenize, /detokenize and /apply-template, as llama-server has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from sessiond.api.answers import AppliedTemplate, Detokenized, Tokens, documented
from sessiond.api.connection import answered
from sessiond.api.conversation import conversation
from sessiond.api.presets import template_fields
from sessiond.api.routing import Config, JsonRequest, JsonRoute, TheTurns, json_response
from sessiond.api.schemas import ChatRequest, Schema
from sessiond.api.template_options import template_options
from sessiond.sessions.text import Vocabulary
from sessiond.sessions.transcript import Chat, clean
from sessiond.sessions.turn import Turns

router = APIRouter(route_class=JsonRoute)
Token = Annotated[int, Field(ge=0, le=2**31 - 1)]


class TokenizeRequest(Schema):
    """`add_special`: with the tokens that a prompt begins with. `with_pieces`: and their text."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Schema):
    tokens: Annotated[list[Token], Field(max_length=4_000_000)]


@router.post("/tokenize", responses=documented(Tokens))
async def tokenize(request: JsonRequest, body: TokenizeRequest, turns: TheTurns) -> Response:
    """Waits for the model, as the others do."""
    return await answered(request.receive, _tokens(turns, body))


@router.post("/detokenize", responses=documented(Detokenized))
async def detokenize(request: JsonRequest, body: DetokenizeRequest, turns: TheTurns) -> Response:
    return await answered(request.receive, _text(turns, body.tokens))


@router.post("/apply-template", responses=documented(AppliedTemplate))
async def apply_template(
    request: JsonRequest, body: ChatRequest, turns: TheTurns, config: Config
) -> Response:
    """The prompt that /v1/chat/completions would make of the same request, as text."""
    raw = await request.json()
    preset = template_fields(config.presets.get(body.model or ""))
    options = template_options(raw, preset)
    chat = conversation({**raw, "chat_template_kwargs": options})
    return await answered(request.receive, _prompt(turns, chat))


async def _tokens(turns: Turns, body: TokenizeRequest) -> Response:
    vocabulary = await turns.vocabulary()
    tokens = await vocabulary.tokens(
        clean(body.content), add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return json_response({"tokens": tokens})
    return json_response({"tokens": [_with_piece(vocabulary, token) for token in tokens]})


async def _text(turns: Turns, tokens: list[int]) -> Response:
    return json_response({"content": await (await turns.vocabulary()).text(tokens)})


async def _prompt(turns: Turns, chat: Chat) -> Response:
    return json_response({"prompt": await (await turns.vocabulary()).prompt(chat)})


def _with_piece(vocabulary: Vocabulary, token: int) -> dict[str, object]:
    """The piece as text, or as numbers where it is a part of a character."""
    piece = vocabulary.piece(token)
    try:
        return {"id": token, "piece": piece.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(piece)}
