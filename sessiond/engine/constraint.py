"""What a reply must look like, as a value: the forms that a grammar is put together from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """This text and no other. A control token's text in it stands for the token."""

    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """Any text up to and with the first `end`, which is not empty."""

    end: str


@dataclass(frozen=True, slots=True)
class Space:
    """At most eight blanks and ends of lines."""


@dataclass(frozen=True, slots=True)
class Json:
    """JSON that follows a schema, which is JSON text itself; `param` is the field it came from.

    `lenient`: keywords that no grammar can express are ignored, else they are an error.
    """

    schema: str
    param: str
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One behind the other."""

    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of these, at least one of which there is."""

    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    form: Form


@dataclass(frozen=True, slots=True)
class Repeat:
    """`form` as often as the model wants, up to `most` times, not at all too."""

    form: Form
    most: int


@dataclass(frozen=True, slots=True)
class Lark:
    """A whole grammar in llguidance's dialect of Lark; `param` is the field it came from."""

    text: str
    param: str


Form = Literal | Words | Space | Json | Row | Either | Maybe | Repeat


@dataclass(frozen=True, slots=True)
class Constraint:
    """All of a reply, its reasoning too. Equal constraints are compiled once."""

    form: Form | Lark

    @property
    def schemas(self) -> tuple[Json, ...]:
        return () if isinstance(self.form, Lark) else tuple(_schemas(self.form))


def _schemas(form: Form) -> list[Json]:
    match form:
        case Json():
            return [form]
        case Row(forms) | Either(forms):
            return [each for inner in forms for each in _schemas(inner)]
        case Maybe(inner) | Repeat(inner):
            return _schemas(inner)
    return []
