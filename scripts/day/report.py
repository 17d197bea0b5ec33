"""What the days of a trace come to: figures of each event over all rounds, goals, tables, plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts import plots, results
from scripts.daemon import Json
from scripts.day.replay import SLACK, Cost, Day
from scripts.day.trace import Restart, Trace, Turn
from scripts.plots import Panel, Role, Series
from scripts.results import Goal, Spread, number, spread
from sessiond.cli.output import Column

OURS = "sessiond"
MIB = 1 << 20
Days = Mapping[str, Sequence[Day]]
"""By server, a day for each round."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event over all rounds. `worst` is the round with the most tokens for its bound."""

    worst: Cost
    ttft_ms: Spread
    written: Spread | None
    resident: int | None


@dataclass(frozen=True, slots=True)
class Sum:
    """Of one server and trace. Tokens are those of the round that evaluated most."""

    sent: int
    evaluated: int | None
    lower: int
    written: int | None
    resident: int | None
    restart_s: Spread | None
    left_out: int
    over: tuple[str, ...]
    """Events that took more than their stated bound allows."""

    @property
    def ratio(self) -> float | None:
        return None if self.evaluated is None else self.evaluated / self.lower


def events_of(days: Sequence[Day]) -> list[Event]:
    return [_event(costs) for costs in zip(*(day.costs for day in days), strict=True)]


def _event(costs: Sequence[Cost]) -> Event:
    written = [cost.written for cost in costs if cost.written is not None]
    resident = [cost.resident for cost in costs if cost.resident is not None]
    return Event(
        max(costs, key=lambda cost: (cost.evaluated or 0) / cost.stated),
        spread(cost.ttft_ms for cost in costs),
        spread(written) if written else None,
        max(resident, default=None),
    )


def sum_of(days: Sequence[Day]) -> Sum:
    worst = max(days, key=lambda day: day.evaluated or 0)
    written = [day.written for day in days if day.written is not None]
    resident = [c.resident for day in days for c in day.costs if c.resident is not None]
    starts = [seconds for day in days for seconds in day.restarts]
    over = sorted({cost.event for day in days for cost in day.costs if not cost.holds})
    return Sum(
        sent=worst.sent,
        evaluated=worst.evaluated,
        lower=worst.lower,
        written=max(written, default=None),
        resident=max(resident, default=None),
        restart_s=spread(starts) if starts else None,
        left_out=worst.left_out,
        over=tuple(over),
    )


def goals_of(found: Mapping[str, Days], traces: Sequence[Trace]) -> list[Goal]:
    """Of sessiond, where it took part."""
    goals: list[Goal] = []
    for trace in traces:
        days = found[trace.name]
        if OURS not in days:
            continue
        ours = sum_of(days[OURS])
        if trace.header.appends and ours.ratio is not None:
            name = f"{trace.name}: evaluated / lower bound"
            goals.append(Goal(name, ours.ratio, SLACK, at_least=False))
        name = f"{trace.name}: events over {SLACK} times their bound"
        goals.append(Goal(name, float(len(ours.over)), 0.0, at_least=False))
        for other in days:
            if other != OURS:
                goals += _against(trace.name, days, other)
    return goals


def _against(name: str, days: Days, other: str) -> list[Goal]:
    ours, theirs = sum_of(days[OURS]), sum_of(days[other])
    if ours.evaluated is None or theirs.evaluated is None:
        return []
    more = more_than(days, other)
    of_theirs = ours.evaluated / theirs.evaluated
    return [
        Goal(f"{name}: evaluated / {other}", of_theirs, 1.0, at_least=False),
        Goal(f"{name}: events with more than {other}", float(len(more)), 0.0, at_least=False),
    ]


def more_than(days: Days, other: str) -> list[str]:
    """Events for which sessiond evaluated more, by more than replies of another length explain.

    Each is measured over its own lower bound, for the servers' replies may differ.
    """
    pairs = zip(events_of(days[OURS]), events_of(days[other]), strict=True)
    return [
        our.worst.event for our, their in pairs if _over(our.worst) > max(_over(their.worst), 0)
    ]


def _over(cost: Cost) -> int:
    return (cost.evaluated or 0) - cost.lower


def as_json(found: Mapping[str, Days]) -> Json:
    return {
        name: {
            server: {"sum": _sum_json(sum_of(rounds)), "rounds": [asdict(day) for day in rounds]}
            for server, rounds in days.items()
        }
        for name, days in found.items()
    }


def _sum_json(found: Sum) -> Json:
    return asdict(found) | {"ratio": found.ratio}


def show(found: Mapping[str, Days]) -> None:
    titles = "TRACE SERVER SENT EVALUATED BOUND RATIO".split()
    titles += ["WRITTEN MiB", "MEMORY MiB", "RESTART s"]
    columns = [Column(title, right=place > 1) for place, title in enumerate(titles)]
    rows = []
    for name, days in found.items():
        for server, rounds in days.items():
            total = sum_of(rounds)
            rows.append(
                (
                    *(name, server, f"{total.sent:,}", _counted(total.evaluated)),
                    *(f"{total.lower:,}", "-" if total.ratio is None else number(total.ratio)),
                    *(_mib(total.written), _mib(total.resident), total.restart_s or "-"),
                )
            )
    results.show("Prompt tokens, in sum", columns, rows)


def show_events(name: str, days: Days) -> None:
    servers = list(days)
    titles = ["EVENT", "SENT", "BOUND"]
    for server in servers:
        titles += [server.upper(), "TTFT ms"]
    titles += ["STATE FROM", "MISS"]
    last = len(titles) - 2
    columns = [Column(title, right=0 < at < last) for at, title in enumerate(titles)]
    rows = []
    for each in zip(*(events_of(rounds) for rounds in days.values()), strict=True):
        first = each[0].worst
        row: list[object] = [first.event, f"{first.sent:,}", f"{first.lower:,}"]
        for event in each:
            row += [_counted(event.worst.evaluated), event.ttft_ms]
        rows.append((*row, first.source, first.miss))
    results.show(f"{name}: prompt tokens of each event (the bound of {servers[0]})", columns, rows)


def plot(trace: Trace, days: Days, folder: Path) -> Path:
    """Tokens and times to the first token of each event, one above the other."""
    found = {server: events_of(rounds) for server, rounds in days.items()}
    first = next(iter(found.values()))
    names = [event.worst.event for event in first]
    tokens = [Series("sent", [event.worst.sent for event in first], Role.SENT)]
    times: list[Series] = []
    for server, events in found.items():
        role = Role.OURS if server == OURS else Role.OTHER
        tokens.append(Series(server, [event.worst.evaluated for event in events], role))
        spreads = [event.ttft_ms for event in events]
        low, high = [one.low for one in spreads], [one.high for one in spreads]
        times.append(Series(server, [one.median for one in spreads], role, low, high))
    tokens.append(Series("lower bound", [event.worst.lower for event in first], Role.BOUND))
    marks = [(at, "restart") for at in restarts_of(trace)]
    title = "Prompt tokens of each event (logarithmic): sent, and evaluated by each server"
    panels = [
        Panel(title, "", "tokens", names, tokens, bars=True, log_y=True, marks=marks),
        Panel(
            "Time to the first token, as the client sees it (median, least to most)",
            *("event", "milliseconds", names, times),
            bars=True,
            marks=marks,
        ),
    ]
    path = folder / f"{trace.name}.png"
    return plots.save(panels, path, f"{trace.name}: {trace.header.about}")


def restarts_of(trace: Trace) -> list[float]:
    """Before which turns the server is started anew, by their numbers less a half."""
    found: list[float] = []
    turns = 0
    for event in trace.events:
        if isinstance(event, Turn):
            turns += 1
        elif isinstance(event, Restart):
            found.append(turns - 0.5)
    return found


def _counted(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"


def _mib(size: int | None) -> str:
    return "-" if size is None else number(size / MIB)
