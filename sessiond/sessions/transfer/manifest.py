"""What an export says of itself: in its first member, and in its last but one.

docs/export-format.md has the format for others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from sessiond.errors import InvalidExport
from sessiond.store.chain import Kind

FORMAT, VERSION = "sessiond-export", 1
HEAD, MANIFEST, SEAL = "session.json", "manifest.json", "manifest.sha256"
TURNS, STATE = "turns/{:06}.jsonl", "state/{:06}"
MOST_MEMBERS = 200_000
MEDIA_TYPE = "application/x-tar"
PART = 1 << 20
"""Bytes of what is read, written and passed on at once; a block or snapshot is read as a whole."""
Policy = Literal["append-only", "fork"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """As in the ledger, without whose it is. Times are Unix seconds."""

    name: str
    named: bool
    agent: str | None
    title: str
    policy: Policy | None
    pinned_front: tuple[str, ...] | None
    created: float


@dataclass(frozen=True, slots=True)
class Origin:
    """The digests under which state was computed; "" where the file has none."""

    fingerprint: str = ""
    model: str = ""
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    format: str
    version: int
    written_by: str
    exported: float
    session: Session
    state_of: Origin


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StateMember:
    """The state of the tokens [start, end) of the line that ends with `turn`, as llama.cpp gave it.

    A snapshot has all that cannot be truncated at `end`, and `start` 0.
    """

    name: str
    bytes: int
    sha256: str
    kind: Kind
    turn: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """All members before it, in order: first `members`, then `state`."""

    members: tuple[Member, ...]
    state: tuple[StateMember, ...] = ()


_HEAD, _MANIFEST = TypeAdapter(Head), TypeAdapter(Manifest)


def written(document: Head | Manifest) -> bytes:
    return orjson.dumps(asdict(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_head(raw: bytes) -> Head:
    """Raises InvalidExport, also for a newer format."""
    found = loaded(raw, HEAD)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InvalidExport("The file is no export of a session.")
    version = found.get("version")
    if type(version) is not int or version < 1:
        raise InvalidExport("The file does not say which format it has.")
    if version > VERSION:
        raise InvalidExport(
            f"The file has format {version}; this sessiond reads up to {VERSION}.",
            hint="A newer sessiond wrote it: update this one.",
        )
    return checked(_HEAD, found, HEAD)


def read_manifest(raw: bytes) -> Manifest:
    """Raises InvalidExport."""
    return checked(_MANIFEST, loaded(raw, MANIFEST), MANIFEST)


def loaded(raw: bytes, where: str) -> Any:
    """Raises InvalidExport."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidExport(f"{where} is no JSON.") from error


def checked(kind: TypeAdapter[T], value: object, where: str) -> T:
    """Nothing is taken for what it is not: a number in quotes is no number.

    Raises InvalidExport.
    """
    try:
        return kind.validate_json(orjson.dumps(value), strict=True)
    except orjson.JSONEncodeError as error:
        raise InvalidExport(f"{where} cannot be read: it is nested too deeply.") from error
    except ValidationError as error:
        field = ".".join(str(step) for step in error.errors()[0]["loc"]) or "it"
        raise InvalidExport(f"{where} cannot be read: {field} is not as it must be.") from error


def seal(digest: str) -> bytes:
    """As `sha256sum --check` reads it."""
    return f"{digest}  {MANIFEST}\n".encode()
