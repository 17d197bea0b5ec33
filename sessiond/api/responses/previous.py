"""What a request takes from stored responses: the conversation it goes on with, and items."""

from __future__ import annotations

from collections.abc import Sequence

from sessiond.api.dialect import Json
from sessiond.api.responses.ids import ItemPlace, place_of
from sessiond.api.responses.items import Wording, input_items
from sessiond.api.responses.reading import kind_of
from sessiond.errors import InvalidRequest
from sessiond.sessions.responses import ResponseNotFound
from sessiond.sessions.transcript import Message
from sessiond.sessions.turn import StoredResponse, Turns


class PreviousResponseNotFound(InvalidRequest):
    code = "previous_response_not_found"


async def previous_response(turns: Turns, response: str | None) -> StoredResponse | None:
    """Raises PreviousResponseNotFound."""
    if response is None:
        return None
    try:
        return await turns.response(response)
    except ResponseNotFound as error:
        raise PreviousResponseNotFound(
            f"Previous response with id {response!r} not found.",
            hint=error.hint,
            param="previous_response_id",
        ) from error


def history(stored: StoredResponse) -> list[Json]:
    """All that was said, as a chat request would say it; as with OpenAI, not its instructions."""
    return [_chat_message(message) for message in (*without_instructions(stored), stored.said)]


def without_instructions(stored: StoredResponse) -> tuple[Message, ...]:
    return stored.asked[1:] if stored.fields.get("instructed") else stored.asked


def wording_of(stored: StoredResponse) -> Wording:
    fields = stored.fields
    return Wording(
        stored.id,
        bool(fields.get("summarises")),
        bool(fields.get("encrypts")),
        fields.get("namespaces", {}),
    )


async def resolved(turns: Turns, items: str | Sequence[Json]) -> str | list[Json]:
    """References replaced by the items of stored responses. Raises InvalidRequest."""
    if isinstance(items, str):
        return items
    known: dict[str, StoredResponse] = {}
    found: list[Json] = []
    for index, item in enumerate(items):
        if kind_of(item) == "item_reference":
            item = await _referenced(turns, item.get("id"), f"input[{index}]", known)
        found.append(item)
    return found


async def _referenced(
    turns: Turns, id_: object, where: str, known: dict[str, StoredResponse]
) -> Json:
    place = place_of(id_)
    try:
        if place is not None and place.response not in known:
            known[place.response] = await turns.response(place.response)
    except ResponseNotFound:
        place = None
    items = _items(known[place.response], place) if place else []
    item = next((one for one in items if one["id"] == id_), None)
    if item is None:
        raise InvalidRequest(
            f"Item with id {id_!r} not found.",
            hint="Only items of stored responses can be referred to.",
            param=f"{where}.id",
        )
    return item


def _items(stored: StoredResponse, place: ItemPlace) -> list[Json]:
    if place.is_input:
        return input_items(stored.id, without_instructions(stored))
    return wording_of(stored).items(stored.output)


def _chat_message(message: Message) -> Json:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": message.content,
        "name": message.name,
        "tool_calls": calls,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
