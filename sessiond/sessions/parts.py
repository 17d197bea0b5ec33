"""What a reply is made of, as its reader is to see it: words, reasoning, and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Said:
    """Words for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning, without the marks around it."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A whole call. `arguments` is a JSON object as text; `id` is made up and names this call."""

    id: str
    name: str
    arguments: str


Part = Said | Thought | Called


class ReplyParser(Protocol):
    """Takes a reply apart while it is written; whatever the pieces, the joined parts are the same.

    One reply each. What only looks like a call, and a broken one, is said as text. `opened` is the
    mark of reasoning that the prompt ended with, "" for none.
    """

    @property
    def opened(self) -> str: ...

    def feed(self, text: str) -> tuple[Part, ...]:
        """What is certain by now, in order."""
        ...

    def close(self) -> tuple[Part, ...]:
        """What is left when nothing more comes."""
        ...


class PlainParser:
    """For raw completions: all that comes is said."""

    opened = ""

    def feed(self, text: str) -> tuple[Part, ...]:
        return (Said(text),) if text else ()

    def close(self) -> tuple[Part, ...]:
        return ()


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same reply in as few parts as possible; order is kept."""
    return tuple(one for kind, run in groupby(parts, key=type) for one in _whole(kind, run))


def _whole(kind: type[Part], run: Iterable[Part]) -> Iterator[Part]:
    if kind is Called:
        yield from run
    else:
        text = "".join(part.text for part in run if not isinstance(part, Called))
        yield Said(text) if kind is Said else Thought(text)


def said(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Said))


def thought(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Thought))


def calls(parts: Iterable[Part]) -> tuple[Called, ...]:
    return tuple(part for part in parts if isinstance(part, Called))
