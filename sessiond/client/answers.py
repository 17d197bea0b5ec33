"""What the daemon answers, as dataclasses and errors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import orjson

from sessiond.client.http import httpx
from sessiond.errors import SessiondError, SessionNotFound
from sessiond.sessions.explanation import FirstDiff
from sessiond.sessions.turn import Miss

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Json = dict[str, Any]
Answer = TypeVar("Answer", bound="DataclassInstance")
_NESTED: dict[str, type[DataclassInstance]] = {"miss": Miss, "first_diff": FirstDiff}


class RequestFailed(SessiondError):
    """The daemon refused or failed. `answered` is the HTTP status, 200 for an error in a stream."""

    code: ClassVar[str] = "request_failed"

    def __init__(self, message: str, *, answered: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.answered = answered


def document(answer: httpx.Response) -> Json:
    """The JSON object of an answer. Raises RequestFailed where it is none."""
    try:
        content = orjson.loads(answer.content)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _stranger(answer)
    return content


def _stranger(answer: httpx.Response) -> RequestFailed:
    return RequestFailed(
        f"{answer.url} answered {answer.status_code}, but not as sessiond does.",
        answered=answer.status_code,
        hint="Is that address another program's? Give the right one with --url.",
    )


def read(kind: type[Answer], content: object) -> Answer:
    """A dataclass from JSON. Fields a newer daemon adds are left out."""
    if not isinstance(content, dict):
        raise RequestFailed(f"The daemon's answer is no {kind.__name__}.", answered=200)
    if not content.keys() <= _names(kind):
        content = {name: value for name, value in content.items() if name in _names(kind)}
    nested = {name: _field(name, content[name]) for name in _composite(kind) & content.keys()}
    try:
        return kind(**(content | nested))
    except TypeError as error:
        raise RequestFailed(
            f"The daemon's answer is not a complete {kind.__name__}: {error}.",
            answered=200,
            hint="Are the daemon and this command of the same version?",
        ) from error


@cache
def _names(kind: type[DataclassInstance]) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))


@cache
def _composite(kind: type[DataclassInstance]) -> frozenset[str]:
    """Fields that JSON has as lists or objects."""
    tuples = {field.name for field in fields(kind) if str(field.type).startswith("tuple")}
    return _names(kind) & (tuples | _NESTED.keys())


def _field(name: str, value: object) -> object:
    if name in _NESTED and isinstance(value, dict):
        return read(_NESTED[name], value)
    return tuple(value) if isinstance(value, list) else value


def failure(answer: httpx.Response, session: str | None) -> SessiondError:
    """The error an answer tells of; `session` is the one the request named."""
    error = document(answer).get("error")
    if not isinstance(error, dict) or "message" not in error:
        return _stranger(answer)
    if error.get("code") == SessionNotFound.code and session is not None:
        return SessionNotFound(
            f'There is no session named "{session}".', hint="See what there is: sessiond list"
        )
    hint = "Set the key in SESSIOND_API_KEY." if answer.status_code == 401 else ""
    return RequestFailed(str(error["message"]), answered=answer.status_code, hint=hint)


def samples(text: str) -> dict[str, float]:
    """What Prometheus reads, by name and labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            with suppress(ValueError):
                found[name] = float(value)
    return found
