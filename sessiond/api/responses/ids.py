"""Ids of responses and their items. An item's id says whose it is, and so finds it again."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

_RESPONSE = "resp_"
_ITEM = re.compile(r"(?:rs|msg|fc)_([0-9a-f]{48})(i?)([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class ItemPlace:
    """Item `index` of a response's output, or of its input."""

    response: str
    index: int
    is_input: bool = False


def new_response_id() -> str:
    return f"{_RESPONSE}{secrets.token_hex(24)}"


def item_id(kind: str, place: ItemPlace) -> str:
    """`kind` is rs, msg or fc."""
    mark = "i" if place.is_input else ""
    return f"{kind}_{place.response.removeprefix(_RESPONSE)}{mark}{place.index}"


def place_of(id_: object) -> ItemPlace | None:
    """None for an id that was not made here."""
    found = _ITEM.fullmatch(id_) if isinstance(id_, str) else None
    if found is None:
        return None
    return ItemPlace(f"{_RESPONSE}{found[1]}", int(found[3]), bool(found[2]))
