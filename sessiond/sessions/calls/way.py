"""One way to write calls: what begins a call, where it ends, what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sessiond.sessions.calls.call import InlineCall


class Channel(Enum):
    """What a message without a call in it is for; NOTHING follows a header that was cut off."""

    SAID = "said"
    THOUGHT = "thought"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """After `at` characters of the text just read: the call has ended, or is none (`fits`)."""

    fits: bool
    at: int


class Reader(Protocol):
    """Looks for the end of one call that has begun, while it is written; reads nothing twice."""

    def feed(self, text: str) -> Verdict | None:
        """None while the call goes on."""
        ...

    def close(self) -> bool:
        """Whether the call can be whole if nothing more comes."""
        ...


def _nothing(_: str) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Way:
    """`marks` begin a call; without any, the call is the whole reply and begins with `begins`.

    `take` reads what `reader` found, with its mark: the calls, or what kind of message begins here,
    or None for text that only looks like a call. `closer` may follow and belongs to it.
    `channels`: what is said and thought is marked in this way, too, and `idle` means nothing where
    no message follows it. `cost`: how long `take` will be at it, in steps of Python's, for a way
    that does not leave it to a parser in C.
    """

    name: str
    reader: Callable[[str], Reader]
    take: Callable[[str], tuple[InlineCall, ...] | Channel | None]
    marks: tuple[str, ...] = ()
    begins: str = ""
    closer: str = ""
    channels: bool = False
    idle: str = ""
    cost: Callable[[str], int] = _nothing
