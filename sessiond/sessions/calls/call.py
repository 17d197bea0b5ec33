"""A tool call as a model wrote it into its reply."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_NAME = re.compile(r"[\w./:-]{1,128}")
_KEYS = frozenset({"name", "arguments", "parameters", "type", "id"})


@dataclass(frozen=True, slots=True)
class InlineCall:
    """`arguments` is a JSON object as text. Not `typed`: every value in it is text as written."""

    name: str
    arguments: str
    typed: bool = True


Taken = tuple[str, tuple[InlineCall, ...]]
"""What is left of a text, and the calls that were in it."""


def call(name: object, arguments: object, typed: bool = True) -> InlineCall | None:
    """None where the name is none, or the arguments are no object."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return InlineCall(name, text, typed)


def parsed(text: str) -> object:
    """None for text that is not JSON, too. Strings may have line breaks in them."""
    try:
        value: object = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value


def described(value: object, strict: bool = True) -> InlineCall | None:
    """The call that an object with a name and arguments stands for.

    `strict`: there are arguments, and nothing else is in it.
    """
    if not isinstance(value, dict) or (strict and not value.keys() <= _KEYS):
        return None
    arguments = value.get("arguments", value.get("parameters", None if strict else {}))
    return call(value.get("name"), parsed(arguments) if isinstance(arguments, str) else arguments)


def all_of(calls: list[InlineCall | None]) -> tuple[InlineCall, ...] | None:
    """None if there are none, or one of them is no call."""
    known = tuple(one for one in calls if one is not None)
    return known if known and len(known) == len(calls) else None
