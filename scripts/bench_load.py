"""Many streams at once: throughput next to a bare llama.cpp loop, and what they wait for.

Each contestant is a process of its own, and all but one sleep: the bare loop, sessiond's engine
without HTTP, the daemon read over HTTP by a process of its own, and other servers, read by the same
client: a stock llama-server that is started here with the options of `scripts/bench_day.py`, or any
OpenAI-compatible one that runs. All that are started here have the same model, threads, context,
batch and lines; all get the same prompts, draw greedily and keep nothing from one run to the next
(a server that runs already may). They take turns, and who begins changes with every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Annotated

import typer

from scripts import results
from scripts.bench import (
    MODEL_HELP,
    AsJson,
    Out,
    Quick,
    model_path,
    name_of,
    run,
    words,
    workplace,
)
from scripts.daemon import DaemonFailed
from scripts.day.servers import Place
from scripts.load_contestants import BARE, OURS, Contestant, contestants
from scripts.load_loops import LINES, N_BATCH, Heard, Stream
from scripts.load_plot import draw
from scripts.results import RESULTS, Goal, Spread, environment, progress, spread
from scripts.rivals import Key, Launch, LaunchOptions, Url, rivals_of
from sessiond.cli.output import Column
from sessiond.engine.core import STEP_BUDGET_MS
from sessiond.engine.llama import physical_cores

SCRIPT = "bench_load"
OF_BETTER = 0.95
BUDGETS = 2.0
"""So many step budgets a stream of sessiond waits for a token at most."""
HYBRID = "hybrid-tiny"
"""Its gaps are measured too, after those of another model."""
STREAMS = (1, 2, 4, 8)
SHORT = 32
_AFTER = 8


@dataclass(frozen=True, slots=True)
class Task:
    """`prompt` tokens are read for the prefill, `reply` drawn for the decode, by each stream.

    `long` tokens are read while another stream draws.
    """

    model: str
    streams: tuple[int, ...]
    prompt: int
    reply: int
    long: int
    n_ctx: int
    threads: int
    rounds: int

    @property
    def place(self) -> Place:
        return Place(model_path(self.model), None, self.n_ctx, LINES, self.threads)


@dataclass(frozen=True, slots=True)
class Gap:
    """Milliseconds between two tokens of a stream, the longest and the median, while another line
    reads `long` tokens, which took `reading_ms`.
    """

    longest: Spread
    median: Spread
    reading_ms: Spread

    @property
    def budgets(self) -> float:
        return self.longest.high / STEP_BUDGET_MS


def prefill_rate(heard: Sequence[Heard], tokens: int) -> float:
    """Prompt tokens per second, of all streams, until the last one has its first token."""
    began = min(each.began for each in heard)
    return tokens * len(heard) / (max(each.times[0] for each in heard) - began)


def decode_rate(heard: Sequence[Heard]) -> float:
    """Tokens per second, of all streams, while all of them draw."""
    start = max(each.times[0] for each in heard)
    stop = min(each.times[-1] for each in heard)
    drawn = sum(start < at <= stop for each in heard for at in each.times)
    return drawn / (stop - start) if stop > start else 0.0


def gaps(talking: Heard, reading: Heard) -> list[float]:
    """Milliseconds between tokens of one stream from when the other began to its first token."""
    ends = [at for at in talking.times if at < reading.began][-1:]
    ends += [at for at in talking.times if reading.began <= at <= reading.times[0]]
    return [(after - before) * 1e3 for before, after in pairwise(ends)]


def throughput(
    task: Task, racing: dict[str, Contestant]
) -> dict[str, dict[str, dict[str, Spread]]]:
    """Tokens per second by streams, phase and contestant. The first round is not counted."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    names = list(racing)
    for number in range(task.rounds + 1):
        progress(f"round {number} of {task.rounds}")
        for count in task.streams:
            for step in range(len(names)):
                name = names[(number + step) % len(names)]
                rates = _rates(task, racing[name], name, count, number)
                for phase, rate in rates.items():
                    by_name = found.setdefault(str(count), {}).setdefault(phase, {})
                    by_name.setdefault(name, []).append(rate)
    return {
        count: {
            phase: {name: spread(rates[1:]) for name, rates in by_name.items()}
            for phase, by_name in phases.items()
        }
        for count, phases in found.items()
    }


def _rates(task: Task, who: Contestant, name: str, count: int, number: int) -> dict[str, float]:
    def streams(phase: str, prompt: int, reply: int) -> list[Stream]:
        marks = [f"{phase}-{number}-{count}-{at}" for at in range(count)]
        return [Stream(words(prompt, mark), reply, who.path(mark)) for mark in marks]

    read = who.run(streams("prefill", task.prompt, 1))
    drawn = who.run(streams("decode", SHORT, task.reply))
    if any(not each.times for each in (*read, *drawn)):
        raise DaemonFailed(f"{name}: a stream had no tokens.")
    return {"prefill": prefill_rate(read, task.prompt), "decode": decode_rate(drawn)}


def longest_gaps(task: Task, racing: dict[str, Contestant]) -> dict[str, Gap]:
    """Of all but the bare loop, which reads its prompts before it draws."""
    return {name: _gap(task, who, name) for name, who in racing.items() if name != BARE}


def _gap(task: Task, who: Contestant, name: str) -> Gap:
    worst, usual, reading_ms = [], [], []
    for number in range(task.rounds):
        progress(f"{name}: a stream beside {task.long:,} tokens, {number + 1} of {task.rounds}")
        marks = [f"gap-{number}-{role}" for role in ("talks", "reads")]
        talks = Stream(words(SHORT, marks[0]), task.n_ctx // 4, who.path(marks[0]))
        reads = Stream(words(task.long, marks[1]), 1, who.path(marks[1]), _AFTER, ends_all=True)
        talking, reading = who.run([talks, reads])
        found = sorted(gaps(talking, reading)) if reading.times else []
        if not found:
            told = f"{name}: the stream ended before the other line had read its prompt."
            raise DaemonFailed(told)
        worst.append(found[-1])
        usual.append(found[len(found) // 2])
        reading_ms.append((reading.times[0] - reading.began) * 1e3)
    return Gap(spread(worst), spread(usual), spread(reading_ms))


def ratios(
    rates: dict[str, dict[str, dict[str, Spread]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Of the daemon and its engine to the better of the others, by streams and phase."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for count, phases in rates.items():
        for phase, by_name in phases.items():
            better = max(r.median for name, r in by_name.items() if name not in OURS)
            of_better = {n: by_name[n].median / better if better else 0.0 for n in OURS}
            found.setdefault(count, {})[phase] = of_better
    return found


def goals_of(
    ratio: dict[str, dict[str, dict[str, float]]], gap: dict[str, dict[str, Gap]]
) -> list[Goal]:
    goals = [
        Goal(f"{name}, {phase} of {count} streams / the better", of_better[name], OF_BETTER)
        for name in OURS
        for count, phases in ratio.items()
        for phase, of_better in phases.items()
    ]
    for model, by_name in gap.items():
        for name in OURS:
            goal = f"{name}, longest gap on {model}, step budgets"
            goals.append(Goal(goal, by_name[name].budgets, BUDGETS, at_least=False))
    return goals


def show(
    rates: dict[str, dict[str, dict[str, Spread]]],
    ratio: dict[str, dict[str, dict[str, float]]],
    gap: dict[str, dict[str, Gap]],
) -> None:
    names = list(next(iter(next(iter(rates.values())).values())))
    titles = ("STREAMS", "", *(_title(name) for name in names), *(f"{n.upper()} OF" for n in OURS))
    rows = [
        (count, phase, *(by_name[name] for name in names), *ratio[count][phase].values())
        for count, phases in rates.items()
        for phase, by_name in phases.items()
    ]
    columns = [Column(title, right=place != 1) for place, title in enumerate(titles)]
    results.show("Tokens per second of all streams together, median (least-most)", columns, rows)
    columns = [
        Column("MODEL"),
        Column(""),
        *(
            Column(title, right=True)
            for title in ("LONGEST ms", "BUDGETS", "MEDIAN ms", "READ IN ms")
        ),
    ]
    table = [
        (model, name, found.longest, found.budgets, found.median, found.reading_ms)
        for model, by_name in gap.items()
        for name, found in by_name.items()
    ]
    results.show("Between two tokens of a stream while another line reads", columns, table)


def _title(name: str) -> str:
    return name if "://" in name else name.upper()


def main(
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "smollm2",
    prompt: Annotated[int, typer.Option(help="Tokens that each stream reads.", min=32)] = 512,
    reply: Annotated[int, typer.Option(help="Tokens that each stream draws.", min=8)] = 64,
    rounds: Annotated[int, typer.Option(help="Of each, the first not counted.", min=1)] = 3,
    long: Annotated[int, typer.Option(help="Tokens read beside a stream.", min=256)] = 8_000,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    url: Url = "",
    key: Key = "",
    launch: Launch = None,
    launch_options: LaunchOptions = "",
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Streams side by side: tokens per second, and the longest wait for one."""
    rivals = rivals_of(launch, launch_options, url, key)
    task = Task(model, STREAMS, prompt, reply, long, 16_384, threads or physical_cores(), rounds)
    if quick:
        task = Task(HYBRID, (1, 2), 64, 96, 1_500, 4096, threads or 1, 1)
    before = environment()
    gap: dict[str, dict[str, Gap]] = {}
    with workplace() as folder:
        with contestants(task.place, folder / "one", rivals) as racing:
            rates = throughput(task, racing)
            gap[name_of(task.model)] = longest_gaps(task, racing)
        if task.model != HYBRID:
            hybrid = replace(task, model=HYBRID)
            started = replace(rivals, url="")
            with contestants(hybrid.place, folder / "two", started) as racing:
                gap[hybrid.model] = longest_gaps(hybrid, racing)
    ratio = ratios(rates)
    goals = goals_of(ratio, gap)
    measured = {
        "tokens_per_s": rates,
        "of_better": ratio,
        "gaps": {
            model: {name: {**asdict(each), "budgets": each.budgets} for name, each in found.items()}
            for model, found in gap.items()
        },
    }
    settings = {**asdict(task), "step_budget_ms": STEP_BUDGET_MS, "n_batch": N_BATCH}
    settings |= rivals.settings(task.place)
    document = results.document(SCRIPT, settings, measured, goals, before)
    pictures = [draw(document, out or RESULTS / f"{SCRIPT}.json")] if out or not quick else []
    if not as_json:
        show(rates, ratio, gap)
        results.show_goals(goals)
        results.show_environment(before)
        for picture in pictures:
            print(f"\nPlotted in {picture}")
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
