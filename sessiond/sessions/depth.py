"""How deeply a parsed document is nested: what is too deep breaks those that write it again."""

from __future__ import annotations

from collections.abc import Iterable

DEPTH = 64
"""Levels of nesting of a tool or an option, as of requests."""


def is_deeper(value: object, limit: int) -> bool:
    """Without recursion, which is what too much depth would break."""
    level: list[object] = [value]
    for _ in range(limit):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        flat = (item for items in inner if isinstance(items, Iterable) for item in items)
        level = [item for item in flat if isinstance(item, dict | list | tuple)]
        if not level:
            return False
    return True
