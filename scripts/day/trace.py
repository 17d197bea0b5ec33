"""A trace: what an agent does in its day, one event a line. docs/traces.md describes the format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

FOLDER = Path(__file__).resolve().parents[1] / "traces"
Bound = Literal["new", "user", "front", "whole"]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Words = Annotated[int, Field(ge=1, le=100_000)]


class TraceError(Exception):
    """A trace is not as docs/traces.md says; the message names the file and the line."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Say(_Strict):
    """A new message: `words` drawn by a seed, or the reply to the event `reply_of`.

    Messages with the same `like` say the same in all sessions of the trace. An "output" answers the
    calls of the reply before it; where that made none, the agent reports it as the user.
    """

    role: Literal["system", "user", "output"]
    words: Words | None = None
    reply_of: Name | None = None
    like: Name | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.words is None) == (self.reply_of is None):
            raise ValueError("give either words or reply_of")
        if self.like is not None and self.words is None:
            raise ValueError("like goes with words")
        return self


class Edit(_Strict):
    """Message `message` says something else, and what follows stays. Negative: from the end."""

    message: int
    words: Words


class Prune(_Strict):
    """All outputs of tools but the last `keep` become a placeholder."""

    keep: Annotated[int, Field(ge=0)]


class Compact(_Strict):
    """The front, the reply to `summary` as a user message, and the last `keep` messages."""

    summary: Name
    keep: Annotated[int, Field(ge=0)]


class Header(_Strict):
    """`appends`: the evaluated tokens of the whole trace are at most 1.1 times the lower bound."""

    kind: Literal["trace"]
    about: str
    appends: bool = False


class Turn(_Strict):
    """One request. It goes on from the conversation that ends with the reply to `after`."""

    kind: Literal["turn"]
    id: Name
    session: Name | None
    after: Name | None = None
    back: Annotated[int, Field(ge=0)] = 0
    edit: Edit | None = None
    prune: Prune | None = None
    compact: Compact | None = None
    say: tuple[Say, ...] = ()
    tools: Annotated[int, Field(ge=0, le=32)] = 0
    calls: bool = False
    reasoning: Literal["drop", "keep"] = "drop"
    beside: bool = False
    max_tokens: Annotated[int, Field(ge=1, le=100_000)]
    bound: Bound

    @model_validator(mode="after")
    def _whole(self) -> Self:
        changes = [self.back or None, self.edit, self.prune, self.compact]
        if self.after is None and any(change is not None for change in changes):
            raise ValueError("back, edit, prune and compact change what after names")
        if not self.say and not any(change is not None for change in changes):
            raise ValueError("it says nothing new")
        if self.calls and not self.tools:
            raise ValueError("calls needs tools")
        return self

    @property
    def named(self) -> Iterator[str]:
        """The events that it refers to."""
        if self.after:
            yield self.after
        if self.compact:
            yield self.compact.summary
        yield from (say.reply_of for say in self.say if say.reply_of)


class Restart(_Strict):
    """The server ends, by SIGTERM or by SIGKILL, and is started again."""

    kind: Literal["restart"]
    how: Literal["stop", "kill"] = "stop"


class Pause(_Strict):
    """Nobody asks anything."""

    kind: Literal["pause"]
    seconds: Annotated[float, Field(gt=0, le=600)]


Event = Turn | Restart | Pause
_LINE: TypeAdapter[Header | Event] = TypeAdapter(
    Annotated[Header | Turn | Restart | Pause, Field(discriminator="kind")]
)


class Trace(_Strict):
    name: str
    header: Header
    events: tuple[Event, ...]

    @property
    def turns(self) -> list[Turn]:
        return [event for event in self.events if isinstance(event, Turn)]

    @property
    def groups(self) -> list[list[Event]]:
        """What begins together: an event, and the turns beside it."""
        groups: list[list[Event]] = []
        for event in self.events:
            if isinstance(event, Turn) and event.beside:
                groups[-1].append(event)
            else:
                groups.append([event])
        return groups


def read(path: Path) -> Trace:
    """Raises TraceError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    return parse(path.stem, lines)


def parse(name: str, lines: Sequence[str]) -> Trace:
    """Raises TraceError."""
    header: Header | None = None
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        found = _line(line, where)
        if isinstance(found, Header) != (header is None):
            raise TraceError(f"{where}: a trace begins with one line of kind trace")
        if isinstance(found, Header):
            header = found
            continue
        _check(found, events, where)
        events.append(found)
    if header is None or not any(isinstance(event, Turn) for event in events):
        raise TraceError(f"{name} has no turns")
    return Trace(name=name, header=header, events=tuple(events))


def named(names: Sequence[str]) -> list[Trace]:
    """Those of the given names or paths; none given: all in scripts/traces. Raises TraceError."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.jsonl"))}
    if not names:
        return [read(path) for path in known.values()]
    unknown = [name for name in names if name not in known and not Path(name).is_file()]
    if unknown:
        raise TraceError(f"{unknown[0]!r} is neither a file nor one of: {', '.join(known)}")
    return [read(known.get(name, Path(name))) for name in names]


def _line(line: str, where: str) -> Header | Event:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{where}: {field + ': ' if field else ''}{first['msg']}") from error


def _check(event: Event, before: Sequence[Event], where: str) -> None:
    if not isinstance(event, Turn):
        return
    known = {one.id: one for one in before if isinstance(one, Turn)}
    if event.id in known:
        raise TraceError(f"{where}: there is an event {event.id!r} already")
    if event.beside and not (before and isinstance(before[-1], Turn)):
        raise TraceError(f"{where}: {event.id!r} is beside no turn")
    together = set(_together(before)) if event.beside else set()
    for name in event.named:
        if name not in known:
            raise TraceError(f"{where}: there is no event {name!r} before it")
        if name in together:
            raise TraceError(f"{where}: {name!r} has not been answered when this begins")


def _together(events: Sequence[Event]) -> Iterator[str]:
    for event in reversed(events):
        if not isinstance(event, Turn):
            return
        yield event.id
        if not event.beside:
            return
