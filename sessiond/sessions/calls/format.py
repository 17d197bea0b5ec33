"""How the replies of one family of models are to be read, and its calls to be written."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from secrets import choice, token_hex

from sessiond.sessions.calls.spelling import HERMES, Spelling
from sessiond.sessions.calls.tags import CONTROL
from sessiond.sessions.calls.way import Way


def long_id() -> str:
    return f"call_{token_hex(12)}"


def short_id() -> str:
    """Mistral's templates refuse any other length."""
    return "".join(choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True, slots=True)
class Format:
    """`known_by`: a template with any of these texts in it is of this family.

    `marks`: what stands around and in its calls, where models have that as control tokens.
    """

    name: str
    ways: tuple[Way, ...]
    known_by: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    spelling: Spelling = HERMES
    new_id: Callable[[], str] = long_id

    @property
    def control(self) -> tuple[str, ...]:
        """The control tokens that have to be printed to be seen, those around reasoning too."""
        return tuple(dict.fromkeys((*self.marks, *CONTROL)))
