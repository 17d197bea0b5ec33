"""When in its day an event comes, and sessiond's times to the first token, of another server's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from scripts.day.trace import Restart, Trace, Turn


class Moment(Enum):
    """`WARM`: it only adds to a conversation that the server was asked since it started.

    `RESTARTED`: that conversation was not asked since the last restart. `CHANGED`: it was, and the
    trace allows more than what is new, because history was changed. `CALLED`: the reply had to be a
    call, which one server tells when it is whole and another while it is drawn: not compared.
    """

    FIRST = "first"
    WARM = "warm"
    RESTARTED = "restarted"
    CHANGED = "changed"
    CALLED = "called"


class Pair(NamedTuple):
    """Milliseconds of one event."""

    moment: Moment | None
    ours: float
    theirs: float


@dataclass(frozen=True, slots=True)
class Times:
    """Ours / theirs; None where there is no such event.

    `warm` is the median of the ratios of all warm events, the others are ratios of sums.
    """

    warm: float | None
    all: float | None
    restarted: float | None


def moments(trace: Trace) -> dict[str, Moment]:
    """By the names of the events."""
    found: dict[str, Moment] = {}
    since: set[str] = set()
    for event in trace.events:
        if isinstance(event, Restart):
            since.clear()
        elif isinstance(event, Turn):
            found[event.id] = _moment(event, since)
            since.add(event.id)
    return found


def _moment(turn: Turn, since: set[str]) -> Moment:
    if turn.calls:
        return Moment.CALLED
    if turn.after is None:
        return Moment.FIRST
    if turn.after not in since:
        return Moment.RESTARTED
    return Moment.WARM if turn.bound == "new" else Moment.CHANGED


def compared(pairs: Sequence[Pair], *, restarts: bool = True) -> Times:
    """`restarts`: both servers were restarted."""
    known = [pair for pair in pairs if pair.theirs > 0 and pair.moment is not Moment.CALLED]
    warm = [pair.ours / pair.theirs for pair in known if pair.moment is Moment.WARM]
    again = [pair for pair in known if pair.moment is Moment.RESTARTED]
    return Times(
        warm=statistics.median(warm) if warm else None,
        all=_of_sums(known),
        restarted=_of_sums(again) if restarts else None,
    )


def _of_sums(pairs: Iterable[Pair]) -> float | None:
    told = [*pairs]
    return sum(one.ours for one in told) / sum(one.theirs for one in told) if told else None
