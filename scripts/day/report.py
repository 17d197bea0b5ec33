"""What the days of a trace come to: figures of each event over all rounds, goals, tables, plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts import plots, results
from scripts.daemon import Json
from scripts.day.replay import SLACK, Cost, Day
from scripts.day.times import Pair, Times, compared, moments
from scripts.day.trace import Restart, Trace, Turn
from scripts.plots import Panel, Role, Series
from scripts.results import Goal, Spread, number, spread
from sessiond.cli.output import Column

OURS, ALL = "sessiond", "all traces"
AS_SOON = 1.05
"""Times of two servers that differ by less are the same: so far do rounds of one differ."""
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
    """Of one server, and of a trace or of all. Tokens are those of the round that evaluated most.

    `ttft_s`: all times to the first token of a round together, without replies that must be calls.
    """

    sent: int
    evaluated: int | None
    lower: int
    ttft_s: Spread
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
        ttft_s=spread(_ttft_s(day) for day in days),
        written=max(written, default=None),
        resident=max(resident, default=None),
        restart_s=spread(starts) if starts else None,
        left_out=worst.left_out,
        over=tuple(over),
    )


def _ttft_s(day: Day) -> float:
    return sum(cost.ttft_ms for cost in day.costs if not cost.called) / 1e3


def sums_of(found: Mapping[str, Days]) -> dict[str, Sum]:
    """By server, of all traces together."""
    servers = dict.fromkeys(server for days in found.values() for server in days)
    return {server: _together(found, server) for server in servers}


def _together(found: Mapping[str, Days], server: str) -> Sum:
    by_trace = {name: days[server] for name, days in found.items() if server in days}
    sums = {name: sum_of(days) for name, days in by_trace.items()}
    rounds = zip(*by_trace.values(), strict=True)
    starts = [seconds for days in by_trace.values() for day in days for seconds in day.restarts]
    resident = [one.resident for one in sums.values() if one.resident is not None]
    return Sum(
        sent=sum(one.sent for one in sums.values()),
        evaluated=_all(one.evaluated for one in sums.values()),
        lower=sum(one.lower for one in sums.values()),
        ttft_s=spread(sum(map(_ttft_s, each)) for each in rounds),
        written=_all(one.written for one in sums.values()),
        resident=max(resident, default=None),
        restart_s=spread(starts) if starts else None,
        left_out=sum(one.left_out for one in sums.values()),
        over=tuple(f"{name}: {event}" for name, one in sums.items() for event in one.over),
    )


def _all(counted: Iterable[int | None]) -> int | None:
    """The sum, where all are known."""
    found = [*counted]
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def pairs_of(trace: Trace, days: Days, other: str) -> list[Pair]:
    """Each event's time to the first token here and there, the median of all rounds."""
    when = moments(trace)
    both = zip(events_of(days[OURS]), events_of(days[other]), strict=True)
    return [
        Pair(when.get(our.worst.event), our.ttft_ms.median, their.ttft_ms.median)
        for our, their in both
    ]


def times_of(trace: Trace, days: Days, other: str) -> Times:
    return compared(pairs_of(trace, days, other), restarts=not sum_of(days[other]).left_out)


def whole_times(found: Mapping[str, Days], traces: Sequence[Trace], other: str) -> Times:
    """Of all traces together."""
    theirs = [(trace, found[trace.name]) for trace in traces if other in found[trace.name]]
    pairs = [pair for trace, days in theirs for pair in pairs_of(trace, days, other)]
    return compared(pairs, restarts=not sums_of(found)[other].left_out)


def goals_of(found: Mapping[str, Days], traces: Sequence[Trace]) -> list[Goal]:
    """Of sessiond, where it took part."""
    goals: list[Goal] = []
    for trace in traces:
        days = found[trace.name]
        if OURS not in days:
            continue
        ours = sum_of(days[OURS])
        if trace.header.appends and ours.ratio is not None:
            goals.append(_at_most(f"{trace.name}: evaluated / lower bound", ours.ratio, SLACK))
        name = f"{trace.name}: events over {SLACK} times their bound"
        goals.append(_at_most(name, float(len(ours.over)), 0.0))
        for other in others(days):
            goals += _less(trace.name, ours, sum_of(days[other]), other)
            goals += _never_more(trace.name, days, other)
            if len(traces) == 1:
                goals += _no_later(trace.name, times_of(trace, days, other), other)
    return [*goals, *_whole_goals(found, traces)] if len(traces) > 1 else goals


def _whole_goals(found: Mapping[str, Days], traces: Sequence[Trace]) -> list[Goal]:
    sums, goals = sums_of(found), list[Goal]()
    for other in others(sums) if OURS in sums else ():
        goals += _less(ALL, sums[OURS], sums[other], other)
        goals += _no_later(ALL, whole_times(found, traces, other), other)
    return goals


def others(servers: Iterable[str]) -> list[str]:
    return [server for server in servers if server != OURS]


def _at_most(name: str, measured: float, wanted: float = 1.0) -> Goal:
    return Goal(name, measured, wanted, at_least=False)


def _less(name: str, ours: Sum, theirs: Sum, other: str) -> list[Goal]:
    """Each of its own bound: replies differ, and so does what is sent back."""
    if ours.ratio is None or theirs.ratio is None:
        return []
    measured = ours.ratio / theirs.ratio if theirs.ratio else 1.0
    return [_at_most(f"{name}: evaluated of the bound / {other}", measured)]


def _never_more(name: str, days: Days, other: str) -> list[Goal]:
    if sum_of(days[OURS]).evaluated is None or sum_of(days[other]).evaluated is None:
        return []
    more = float(len(more_than(days, other)))
    return [_at_most(f"{name}: events with more than {other}", more, 0.0)]


def _no_later(name: str, times: Times, other: str) -> list[Goal]:
    return [
        _at_most(f"{name}: time to the first token, {words} / {other}", ratio, AS_SOON)
        for words, ratio in (
            ("warm", times.warm),
            ("in sum", times.all),
            ("after a restart", times.restarted),
        )
        if ratio is not None
    ]


def more_than(days: Days, other: str) -> list[str]:
    """Events for which sessiond evaluated more, by more than replies of another length explain:
    more tokens, and more of them over its own lower bound.
    """
    pairs = zip(events_of(days[OURS]), events_of(days[other]), strict=True)
    return [our.worst.event for our, their in pairs if _more(our.worst, their.worst)]


def _more(our: Cost, their: Cost) -> bool:
    if our.evaluated is None or their.evaluated is None:
        return False
    over = our.evaluated - our.lower > max(their.evaluated - their.lower, 0)
    return over and our.evaluated > their.evaluated


def beyond(found: Mapping[str, Days]) -> list[Json]:
    """Events for which sessiond evaluated more than their bound allows, or than another server."""
    told: list[Json] = []
    for name, days in found.items():
        events = {server: [one.worst for one in events_of(each)] for server, each in days.items()}
        for at, our in enumerate(events.get(OURS, ())):
            theirs = {other: events[other][at] for other in others(days)}
            more = [other for other, their in theirs.items() if _more(our, their)]
            if our.holds and not more:
                continue
            counts = {other: their.evaluated for other, their in theirs.items()}
            told.append(
                {"trace": name, "event": our.event, "evaluated": our.evaluated}
                | {"lower": our.lower, "stated": our.stated, "over": not our.holds}
                | {"others": counts, "more_than": more, "source": our.source, "miss": our.miss}
            )
    return told


def as_json(found: Mapping[str, Days], traces: Sequence[Trace]) -> Json:
    """By trace and server."""
    return {trace.name: _trace_json(trace, found[trace.name]) for trace in traces}


def _trace_json(trace: Trace, days: Days) -> Json:
    """`times` are sessiond's, of that server's."""
    compare = others(days) if OURS in days else []
    return {
        server: {
            "sum": _sum_json(sum_of(rounds)),
            "times": asdict(times_of(trace, days, server)) if server in compare else None,
            "rounds": [asdict(day) for day in rounds],
        }
        for server, rounds in days.items()
    }


def whole_json(found: Mapping[str, Days], traces: Sequence[Trace]) -> Json:
    """By server, of all traces together; `times` are sessiond's, of that server's."""
    sums = sums_of(found)
    compare = others(sums) if OURS in sums else []
    return {
        server: {
            "sum": _sum_json(one),
            "times": asdict(whole_times(found, traces, server)) if server in compare else None,
        }
        for server, one in sums.items()
    }


def _sum_json(found: Sum) -> Json:
    return asdict(found) | {"ratio": found.ratio}


def show(found: Mapping[str, Days]) -> None:
    titles = "TRACE SERVER SENT EVALUATED BOUND RATIO".split()
    titles += ["FIRST TOKENS s", "WRITTEN MiB", "MEMORY MiB", "RESTART s"]
    columns = [Column(title, right=place > 1) for place, title in enumerate(titles)]
    rows = [
        _row(name, server, sum_of(rounds))
        for name, days in found.items()
        for server, rounds in days.items()
    ]
    if len(found) > 1:
        rows += [_row(ALL, server, one) for server, one in sums_of(found).items()]
    results.show("Prompt tokens, and times to the first token, in sum", columns, rows)


def _row(name: str, server: str, total: Sum) -> tuple[object, ...]:
    return (
        *(name, server, f"{total.sent:,}", _counted(total.evaluated)),
        *(f"{total.lower:,}", "-" if total.ratio is None else number(total.ratio)),
        *(total.ttft_s, _mib(total.written), _mib(total.resident), total.restart_s or "-"),
    )


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
    roles = _roles(days)
    for server, events in found.items():
        role = roles[server]
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


def plot_day(found: Mapping[str, Days], folder: Path, title: str) -> Path:
    """Each trace in sum: what was evaluated of what was sent, and the times to the first token."""
    sums = {name: {server: sum_of(each) for server, each in d.items()} for name, d in found.items()}
    whole = sums_of(found)
    panels = [_shares({**sums, ALL: whole} if len(found) > 1 else sums), _times(sums, whole)]
    return plots.save(panels, folder / "day.png", title)


def _shares(sums: Mapping[str, Mapping[str, Sum]]) -> Panel:
    roles = _roles(dict.fromkeys(server for each in sums.values() for server in each))
    series = [
        Series(server, [_evaluated_share(one.get(server)) for one in sums.values()], role)
        for server, role in roles.items()
    ]
    first = [next(iter(one.values())) for one in sums.values()]
    bounds = [100 * one.lower / one.sent for one in first]
    series.append(Series("lower bound", bounds, Role.BOUND))
    title = "Prompt tokens evaluated, of those sent"
    marks = [(len(sums) - 1.5, "")] if ALL in sums else []
    return Panel(title, "", "per cent", list(sums), series, bars=True, marks=marks)


def _times(sums: Mapping[str, Mapping[str, Sum]], whole: Mapping[str, Sum]) -> Panel:
    said = ", ".join(f"{server} {number(one.ttft_s.median)} s" for server, one in whole.items())
    series = [
        Series(
            server,
            [one[server].ttft_s.median if server in one else None for one in sums.values()],
            role,
        )
        for server, role in _roles(whole).items()
    ]
    title = f"Times to the first token, all events of a trace together. In sum: {said}"
    return Panel(title, "trace", "seconds", list(sums), series, bars=True)


def _roles(servers: Iterable[str]) -> dict[str, Role]:
    """The first of the other servers has another colour than those after it."""
    found = [*servers]
    roles = dict.fromkeys(found, Role.OTHER_TOO)
    roles |= dict.fromkeys(others(found)[:1], Role.OTHER)
    return roles | ({OURS: Role.OURS} if OURS in roles else {})


def _evaluated_share(one: Sum | None) -> float | None:
    return None if one is None or one.evaluated is None else 100 * one.evaluated / one.sent


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
