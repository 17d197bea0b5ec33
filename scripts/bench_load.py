"""Many streams at once: throughput next to a bare llama.cpp loop, and what they wait for.

Each contestant is a process of its own, and all but one sleep: the bare loop, sessiond's engine
without HTTP, the daemon read over HTTP by a process of its own, and llama-server, read by the same
client, if its binary is given. All use the same model, threads and prompts, and draw greedily. They
take turns, and who begins changes with every round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, Any

import httpx
import typer

from scripts import results
from scripts.bench import AsJson, Out, Quick, model_path, run, words, workplace
from scripts.daemon import Daemon, DaemonFailed, ask, free_port
from scripts.load_loops import LINES, N_BATCH, Heard, Stream
from scripts.results import Goal, Spread, environment, progress, spread
from sessiond.cli.output import Column
from sessiond.engine.core import STEP_BUDGET_MS
from sessiond.engine.llama import physical_cores

OF_BETTER = 0.95
BUDGETS = 2.0
"""So many step budgets a stream waits for a token at most."""
STREAMS = (1, 2, 4, 8)
OURS = ("daemon", "engine")
LLAMA_SERVER = "llama-server"
SHORT = 32
_AFTER = 8
_START_S = 120.0


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


class Contestant:
    """A process of `load_loops`; `path` is where a client asks for a round's stream."""

    def __init__(
        self,
        *arguments: str,
        path: Callable[[str], str] = str,
        forget: Callable[[str], None] | None = None,
    ) -> None:
        """`forget` is told each path afterwards."""
        self.path = path
        self._forget = forget
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.load_loops", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._orders, self._answers = _pipe(self._process.stdin), _pipe(self._process.stdout)
        if not self._answers.readline():
            raise DaemonFailed(f"{' '.join(arguments)} did not start.")

    def run(self, streams: Sequence[Stream]) -> list[Heard]:
        order = json.dumps([asdict(stream) for stream in streams])
        try:
            answer = ask(self._orders, order, self._answers)
        except (json.JSONDecodeError, BrokenPipeError) as error:
            raise DaemonFailed("A contestant broke off; see above.") from error
        if self._forget is not None:
            for stream in streams:
                self._forget(stream.path)
        return [Heard(**heard) for heard in answer["streams"]]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def contestants(task: Task, folder: Path, server: Path | None) -> Iterator[dict[str, Contestant]]:
    model = model_path(task.model)
    with ExitStack() as stack:

        def start(*arguments: str, **more: Any) -> Contestant:
            contestant = Contestant(*arguments, **more)
            stack.callback(contestant.close)
            return contestant

        options = ["--model-threads", str(task.threads), "--n-ctx", str(task.n_ctx)]
        options += ["--max-active", str(LINES)]
        daemon = stack.enter_context(Daemon(model, folder / "state", options))
        found = {"daemon": start("client", str(daemon.port), path=_path, forget=_forget(daemon))}
        for kind in ("engine", "bare"):
            found[kind] = start(kind, str(model), str(task.threads), str(task.n_ctx))
        if server is not None:
            port = stack.enter_context(_llama_server(server, model, task))
            found[LLAMA_SERVER] = start("client", str(port), path=lambda _: "/v1/completions")
        yield found


def _path(session: str) -> str:
    return f"/s/{session}/v1/completions"


def _forget(daemon: Daemon) -> Callable[[str], None]:
    """Deletes the session of a path, as soon as its turn has ended: nothing is left to be saved."""

    def forget(path: str) -> None:
        session = path.split("/")[2]
        while (answer := daemon.http.delete(f"/v1/sessions/{session}")).status_code == 409:
            time.sleep(0.05)
        if answer.status_code not in (204, 404):
            raise DaemonFailed(f"{session} could not be deleted: {answer.text}")

    return forget


@contextmanager
def _llama_server(binary: Path, model: Path, task: Task) -> Iterator[int]:
    port = free_port()
    command = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-c", str(task.n_ctx), "-np", str(LINES), "-t", str(task.threads)]
    command += ["-b", str(N_BATCH), "-ub", str(N_BATCH), "-fa", "on"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield port
        finally:
            process.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise DaemonFailed(f"{LLAMA_SERVER} did not get ready ({process.poll()}).")


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
    """Of the daemon and of its engine."""
    return {name: _gap(task, racing[name]) for name in OURS}


def _gap(task: Task, who: Contestant) -> Gap:
    worst, usual, reading_ms = [], [], []
    for number in range(task.rounds):
        progress(f"a stream beside {task.long:,} tokens, {number + 1} of {task.rounds}")
        marks = [f"gap-{number}-{role}" for role in ("talks", "reads")]
        talks = Stream(words(SHORT, marks[0]), task.n_ctx // 4, who.path(marks[0]))
        reads = Stream(words(task.long, marks[1]), 1, who.path(marks[1]), _AFTER, ends_all=True)
        talking, reading = who.run([talks, reads])
        found = sorted(gaps(talking, reading))
        if not found:
            raise DaemonFailed("The stream ended before the other line had read its prompt.")
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
        for name, found in by_name.items():
            goal = f"{name}, longest gap on {model}, step budgets"
            goals.append(Goal(goal, found.budgets, BUDGETS, at_least=False))
    return goals


def show(
    rates: dict[str, dict[str, dict[str, Spread]]],
    ratio: dict[str, dict[str, dict[str, float]]],
    gap: dict[str, dict[str, Gap]],
) -> None:
    names = list(next(iter(next(iter(rates.values())).values())))
    titles = ("STREAMS", "", *(name.upper() for name in names), *(f"{n.upper()} OF" for n in OURS))
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


def main(
    model: Annotated[str, typer.Option(help="Of scripts.bench.")] = "smollm2",
    prompt: Annotated[int, typer.Option(help="Tokens that each stream reads.", min=32)] = 512,
    reply: Annotated[int, typer.Option(help="Tokens that each stream draws.", min=8)] = 64,
    rounds: Annotated[int, typer.Option(help="Of each, the first not counted.", min=1)] = 3,
    long: Annotated[int, typer.Option(help="Tokens read beside a stream.", min=256)] = 8_000,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    llama_server: Annotated[Path | None, typer.Option(help="Its binary.", exists=True)] = None,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Streams side by side: tokens per second, and the longest wait for one."""
    task = Task(model, STREAMS, prompt, reply, long, 16_384, threads or physical_cores(), rounds)
    if quick:
        task = Task("hybrid-tiny", (1, 2), 64, 96, 1_500, 4096, threads or 1, 1)
    before = environment()
    gap: dict[str, dict[str, Gap]] = {}
    with workplace() as folder:
        with contestants(task, folder / "one", llama_server) as racing:
            rates = throughput(task, racing)
            gap[task.model] = longest_gaps(task, racing)
        if task.model != "hybrid-tiny":
            hybrid = replace(task, model="hybrid-tiny")
            with contestants(hybrid, folder / "two", None) as racing:
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
    settings["llama_server"] = str(llama_server or "")
    document = results.document("bench_load", settings, measured, goals, before)
    if not as_json:
        show(rates, ratio, gap)
        results.show_goals(goals)
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise TypeError("the process was started without a pipe")
    return stream


if __name__ == "__main__":
    run(main)
