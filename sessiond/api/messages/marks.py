"""The client's `cache_control` marks: what it wants to be told of the cache.

State is kept without them, for as long as the store's quota allows. The end of a marked message is
one more place to come back to; and a mark, and its time to live, decide under which name the tokens
that were evaluated are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Lifetime = Literal["5m", "1h"]


def lifetime(body: Mapping[str, Any]) -> Lifetime | None:
    """That of the last mark; None where there is no mark. `body` has passed the schema."""
    marks = [
        mark for place in _places(body) if isinstance(mark := place.get("cache_control"), dict)
    ]
    if not marks:
        return None
    return "1h" if marks[-1].get("ttl") == "1h" else "5m"


def breakpoints(body: Mapping[str, Any]) -> tuple[int, ...]:
    """The messages that follow marked ones, by their numbers in the conversation as it is read."""
    number, found = int(bool(body.get("system"))), list[int]()
    for message in body["messages"]:
        blocks = list(_blocks(message["content"]))
        results = sum(block.get("type") == "tool_result" for block in blocks)
        number += max(1, results + (len(blocks) > results)) if message["role"] == "user" else 1
        if any(isinstance(one.get("cache_control"), dict) for one in (message, *blocks)):
            found.append(number)
    return tuple(found)


def _places(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from body.get("tools") or ()
    yield from _blocks(body.get("system"))
    for message in body["messages"]:
        yield message
        yield from _blocks(message["content"])
    yield body


def _blocks(content: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, list):
        yield from (block for block in content if isinstance(block, dict))
