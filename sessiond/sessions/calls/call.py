"""A tool call as a model wrote it into its reply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

_NAME = re.compile(r"[\w./:-]{1,128}")
_KEYS = frozenset({"name", "arguments", "parameters", "type", "id"})


@dataclass(frozen=True, slots=True)
class InlineCall:
    """`arguments` is JSON text."""

    name: str
    arguments: str


Taken = tuple[str, tuple[InlineCall, ...]]
"""What is left of a text, and the calls that were in it."""
Format = Callable[[str], Taken | None]
"""One family's way to write calls; None for a text that has none in this way."""


def call(name: str, arguments: object) -> InlineCall:
    return InlineCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def parsed(text: str) -> object:
    """None for text that is not JSON, too."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def described(value: object) -> InlineCall | None:
    """The call that an object with a name and arguments stands for; nothing else may be in it."""
    if not isinstance(value, dict) or not value.keys() <= _KEYS:
        return None
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    given = parsed(arguments) if isinstance(arguments, str) else arguments
    return call(name, given) if isinstance(given, dict) else None
