"""The figures of `bench_day` as Markdown: its part of docs/benchmarks.md, and README's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scripts.day.replay import SLACK
from scripts.page_figures import Lines, capital, named, spread, table
from scripts.results import Json, number

SCRIPT = "bench_day"
OURS, ALL = "sessiond", "all together"
Document = tuple[str, Json]
"""The name of a results file, and what stands in it."""
_MB = 1e6
_TOKENS = ("evaluated / bound", "sent", "evaluated", "bound")
_TIMES = ("first tokens, s", "ours / its, warm", "in sum", "after a restart")
_COSTS = ("MB written", "MB of memory", "s to start again")


def day(found: Json) -> Lines:
    """What is not known of a server is left empty."""
    traces = found["results"]
    about = found["settings"].get("traces", {})
    heads = (*_TOKENS, *_TIMES, *_COSTS)
    count = f"{len(traces)} trace{'s' if len(traces) > 1 else ''}"
    lines = [f"{capital(named(found['settings']['model']))}, {count}, in sum:", ""]
    lines += table(("server", *heads), _rows(found["sums"]))
    lines += ["", "Each trace:", ""]
    rows = [[trace, *row] for trace, servers in traces.items() for row in _rows(servers)]
    lines += table(("trace", "server", *heads), rows)
    lines += ["", *_beyond(found["beyond"])]
    return [
        *lines,
        *([""] if about else []),
        *(f"- {name}: {what}" for name, what in about.items()),
    ]


def _rows(servers: Json) -> list[list[object]]:
    return [[server, *_cells(one["sum"], one["times"])] for server, one in servers.items()]


def _cells(of: Json, times: Json | None) -> list[object]:
    ratios = [times[kind] for kind in ("warm", "all", "restarted")] if times else [None] * 3
    restart = spread(of["restart_s"]) if of["restart_s"] else None
    bytes_ = [None if of[kind] is None else of[kind] / _MB for kind in ("written", "resident")]
    tokens = [of[kind] for kind in ("ratio", "sent", "evaluated", "lower")]
    return _known([*tokens, spread(of["ttft_s"]), *ratios, *bytes_, restart])


def _known(cells: Iterable[object]) -> list[object]:
    return ["" if cell is None else cell for cell in cells]


def _beyond(events: Sequence[Json]) -> Lines:
    said = (
        f"Events of which sessiond evaluated more than {SLACK} times the bound that their trace"
        " states, or more than another server, in all and over the lower bound"
    )
    if not events:
        return [f"{said}: none."]
    servers = list(dict.fromkeys(server for one in events for server in one["others"]))
    kinds = ("trace", "event", "evaluated", "stated", "lower")
    rows = [
        _known([*(one[kind] for kind in kinds), *map(one["others"].get, servers), one["miss"]])
        for one in events
    ]
    heads = ("trace", "event", "evaluated", "bound stated", "lower bound", *servers, "why")
    return [f"{said}:", "", *table(heads, rows)]


def readme_tables(documents: Sequence[Document]) -> Lines:
    """Against each other server: every model in sum, then every trace as ratios."""
    days = [(name, found) for name, found in documents if found.get("script") == SCRIPT]
    others = dict.fromkeys(other for _, found in days for other in others_of(found))
    return [line for other in others for line in _against(days, other)]


def others_of(found: Json) -> list[str]:
    """Servers beside sessiond."""
    sums = found["sums"]
    return [server for server in sums if server != OURS] if OURS in sums else []


def _against(days: Sequence[Document], other: str) -> Lines:
    theirs = [(name, found) for name, found in days if other in others_of(found)]
    files = ", ".join(f"`{name}`" for name, _ in theirs)
    machine = ", ".join(dict.fromkeys(found["environment"]["cpu"] for _, found in theirs))
    return [
        f"A day of agents, restarts included, against {other} ({files}, {machine}). In sum:",
        "",
        *_sums(theirs, other),
        "",
        f"Each trace: how many times as many tokens {other} evaluates as sessiond, and how many"
        " times as long its first tokens take (below one: sessiond's take longer):",
        "",
        *_traces(theirs, other),
        "",
    ]


def _sums(days: Sequence[Document], other: str) -> Lines:
    heads = (
        *("model", "evaluated, of the fewest possible", f"{other}, of the fewest possible"),
        *("its first tokens take, times", "sent", "fewest possible", "sessiond evaluates"),
        *(f"{other} evaluates", "first tokens, s", f"{other}, s"),
    )
    return table(heads, [_sum_row(found, other) for _, found in days])


def _sum_row(found: Json, other: str) -> list[object]:
    ours, theirs = (found["sums"][server]["sum"] for server in (OURS, other))
    longer = _longer(found["sums"][other])
    cells = [ours["ratio"], theirs["ratio"], longer, ours["sent"], ours["lower"]]
    seconds = (spread(one["ttft_s"]).median for one in (ours, theirs))
    cells += [ours["evaluated"], theirs["evaluated"], *seconds]
    return [capital(named(found["settings"]["model"])), *_known(cells)]


def _traces(days: Sequence[Document], other: str) -> Lines:
    models = [capital(named(found["settings"]["model"])) for _, found in days]
    heads = [f"{model}: {kind}" for model in models for kind in ("tokens", "time")]
    names = dict.fromkeys(trace for _, found in days for trace in found["results"])
    rows: list[list[object]] = [
        [name, *(cell for _, found in days for cell in _pair(found["results"].get(name), other))]
        for name in names
    ]
    totals = [cell for _, found in days for cell in _pair(found["sums"], other)]
    return table(("trace", *heads), [*rows, [ALL, *totals]])


def _pair(servers: Json | None, other: str) -> list[object]:
    """The other's tokens and time, of ours."""
    if servers is None or OURS not in servers or other not in servers:
        return ["", ""]
    ours, theirs = (servers[server]["sum"]["evaluated"] for server in (OURS, other))
    tokens = theirs / ours if ours and theirs is not None else None
    return _known([tokens, _longer(servers[other])])


def _longer(other: Json) -> float | None:
    ratio = other["times"]["all"]
    return 1 / ratio if ratio else None


def sentences(found: Json) -> Lines:
    """Where it met no other server."""
    if others_of(found) or OURS not in found["sums"]:
        return []
    ours = found["sums"][OURS]["sum"]
    return [
        f"{len(found['results'])} traces of agents, {named(found['settings']['model'])}:"
        f" {number(ours['ratio'])} of the fewest tokens that can be evaluated,"
        f" {number(100 * ours['evaluated'] / ours['sent'])} % of those sent"
    ]
