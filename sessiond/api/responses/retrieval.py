"""GET and DELETE /v1/responses/{id}, and the items that a response answered."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from sessiond.api.answers import documented
from sessiond.api.dialect import Json
from sessiond.api.responses.answer import Heading, Spent, ending
from sessiond.api.responses.answers import DeletedResponse, InputItems, ResponseObject
from sessiond.api.responses.items import input_items
from sessiond.api.responses.previous import without_instructions, wording_of
from sessiond.api.responses.tools import flat
from sessiond.api.routing import JsonRoute, TheTurns, json_response
from sessiond.errors import InvalidRequest
from sessiond.sessions.turn import StoredResponse

router = APIRouter(route_class=JsonRoute)
ResponseId = Annotated[str, Path(max_length=512)]


@router.get("/responses/{response}", responses=documented(ResponseObject))
async def retrieve(response: ResponseId, turns: TheTurns, stream: bool = False) -> Response:
    if stream:
        raise InvalidRequest(
            "A response that has ended cannot be streamed again.",
            hint="Leave stream out.",
            param="stream",
        )
    stored = await turns.response(response)
    return json_response(_whole(stored, turns.model_name))


@router.delete("/responses/{response}", responses=documented(DeletedResponse))
async def delete(response: ResponseId, turns: TheTurns) -> Response:
    """The turn stays in its session."""
    await turns.forget_response(response)
    return json_response({"id": response, "object": "response", "deleted": True})


@router.get("/responses/{response}/input_items", responses=documented(InputItems))
async def list_input_items(
    response: ResponseId,
    turns: TheTurns,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    stored = await turns.response(response)
    items = input_items(response, without_instructions(stored))
    if order == "desc":
        items.reverse()
    start = _behind(items, after)
    page = items[start : start + limit]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + limit < len(items),
        }
    )


def _behind(items: list[Json], after: str | None) -> int:
    if after is None:
        return 0
    place = next((index for index, item in enumerate(items) if item["id"] == after), None)
    if place is None:
        raise InvalidRequest(
            f"There is no item {after!r} in it.", hint="Use an id from the list.", param="after"
        )
    return place + 1


def _instructions(stored: StoredResponse) -> str | None:
    told = stored.asked[:1] if stored.fields.get("instructed") else ()
    return told[0].content if told else None


def _whole(stored: StoredResponse, model: str | None) -> Json:
    fields = stored.fields
    status, more = ending(stored.finish_reason)
    heading = Heading(
        wording=wording_of(stored),
        created=fields.get("created", int(stored.created)),
        instructions=_instructions(stored),
        tools=[flat(tool) for tool in stored.tools],
        echoed=fields.get("echoed", {}),
    )
    spent = Spent(
        stored.prompt_tokens,
        stored.cached_tokens,
        stored.prefilled_tokens,
        stored.completion_tokens,
        stored.reasoning_tokens,
        stored.miss,
    )
    items = heading.wording.items(stored.output, cut=status == "incomplete")
    named = model or heading.echoed.get("model") or "unknown"
    block = {"session": stored.session, "turn": stored.turn, "miss": stored.miss}
    return heading.body(status, named, items, **spent.told(), sessiond=block, **more)
