"""What the daemon is to an agent, and what a person pastes into the agent's settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Form = Literal["shell", "json", "toml", "text"]
KEY_VARIABLE = "SESSIOND_API_KEY"
NO_KEY = "none"
"""Stands where a client insists on a key and the daemon asks for none."""
PATIENCE_S = 3600
"""A long prompt on a slow machine: no agent should give up sooner."""
OUTPUT = 32_000
"""Tokens of one reply that an agent may ask for, where the context allows so many."""


@dataclass(frozen=True, slots=True)
class Target:
    """`base` is the daemon's address with the session's path, if any, and without /v1.

    `context` in tokens, None where the daemon has not said. `has_key`: SESSIOND_API_KEY is set.
    """

    base: str
    model: str
    context: int | None
    has_key: bool = False

    @property
    def openai(self) -> str:
        return f"{self.base}/v1"

    @property
    def output(self) -> int | None:
        """The longest reply to ask for, in tokens: a quarter of the context at most."""
        return None if self.context is None else max(1, min(OUTPUT, self.context // 4))


@dataclass(frozen=True, slots=True)
class Settings:
    """`content` is pasted as it is, into `file` where there is one. `notes` are for the person."""

    form: Form
    content: str
    file: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def pasted(self) -> str:
        """The content with the notes as comments, where the form has comments."""
        notes = self.told if self.has_comments else ()
        return "".join(f"# {_line(note)}\n" for note in notes) + self.content

    @property
    def told(self) -> tuple[str, ...]:
        """The notes, and where the content goes."""
        return (f"Goes into {self.file}", *self.notes) if self.file else self.notes

    @property
    def has_comments(self) -> bool:
        return self.form != "json"


def _line(note: str) -> str:
    """On one line: what follows a comment is read by a shell."""
    return " ".join(note.split())


Agent = Callable[[Target], Settings]


@dataclass(frozen=True, slots=True)
class Reference:
    """A variable, in its own or another's place; empty and unset are `otherwise`."""

    variable: str
    otherwise: str


KEY = Reference(KEY_VARIABLE, NO_KEY)
Value = str | int | Reference | None


def exports(variables: Mapping[str, Value]) -> str:
    """Lines for a shell; those whose value is None are left out."""
    given = [(name, value) for name, value in variables.items() if value is not None]
    return "".join(f"export {name}={_quoted(value)}\n" for name, value in given)


def _quoted(value: str | int | Reference) -> str:
    if isinstance(value, Reference):
        return f'"${{{value.variable}:-{value.otherwise}}}"'
    return shlex.quote(str(value))


def document(content: object) -> str:
    """JSON; what is None is left out."""
    return json.dumps(_stated(content), indent=2, ensure_ascii=False) + "\n"


def _stated(content: object) -> object:
    if isinstance(content, dict):
        return {name: _stated(value) for name, value in content.items() if value is not None}
    if isinstance(content, list):
        return [_stated(value) for value in content]
    return content
