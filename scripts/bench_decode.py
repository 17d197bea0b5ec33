"""How fast one stream decodes through the daemon, next to a bare llama.cpp loop in the same run.

Three take turns, each in a process of its own, while the other two sleep: the bare loop,
sessiond's engine without HTTP, and the daemon read over HTTP. All use the same model, threads,
context size and prompt, draw greedily, and must produce the same text.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated

import typer

from scripts import results
from scripts.bench import MODEL_HELP, AsJson, Out, Quick, model_path, run, words, workplace
from scripts.daemon import Daemon, DaemonFailed, Json, ask, events
from scripts.decode_loops import cpu_ns
from scripts.results import Goal, Spread, environment, progress, spread
from sessiond.cli.output import Column
from sessiond.engine.llama import physical_cores

OF_BARE = 0.95
PROMPT_TOKENS = 200
NAMES = ("bare", "engine", "daemon")


@dataclass(frozen=True, slots=True)
class Task:
    model: Path
    tokens: int
    threads: int
    n_ctx: int
    prompt: Path


@dataclass(frozen=True, slots=True)
class Pace:
    """Microseconds per token. `inside` is the engine's own time for a step, where it is known.

    `loop_cpu` is what the event loop computes: for the daemon that is HTTP.
    """

    us: Spread
    inside_us: Spread | None = None
    loop_cpu_us: Spread | None = None


class LoopProcess:
    """A contestant of `decode_loops`."""

    def __init__(self, kind: str, task: Task) -> None:
        command = [sys.executable, "-m", "scripts.decode_loops", kind, str(task.model)]
        command += [str(task.threads), str(task.n_ctx), str(task.prompt), str(task.tokens)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answers: IO[str] = _open_end(self._process.stdout)
        self._orders: IO[str] = _open_end(self._process.stdin)
        self._answers.readline()

    def run(self) -> Json:
        return ask(self._orders, "run", self._answers)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class HttpStream:
    """The daemon as a client sees it; only bytes are read, so that the client costs little."""

    def __init__(self, daemon: Daemon, task: Task) -> None:
        self._daemon = daemon
        self._tokens = task.tokens
        self._prompt = task.prompt.read_text(encoding="utf-8")
        self._rounds = 0

    def run(self) -> Json:
        self._rounds += 1
        session = f"round-{self._rounds}"
        before = cpu_ns(self._daemon.pid)
        chunks = list(self._chunks(session))
        loop_ns = cpu_ns(self._daemon.pid) - before
        found = _heard(chunks, self._tokens, loop_ns)
        self._daemon.http.delete(f"/v1/sessions/{session}").raise_for_status()
        return found

    def _chunks(self, session: str) -> Iterator[tuple[float, bytes]]:
        body = {"prompt": self._prompt, "max_tokens": self._tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        peer = http.client.HTTPConnection("127.0.0.1", self._daemon.port)
        headers = {"Content-Type": "application/json"}
        peer.request("POST", f"/s/{session}/v1/completions", json.dumps(body), headers)
        answer = peer.getresponse()
        while chunk := answer.read1():
            yield time.perf_counter(), chunk
        peer.close()


def _heard(chunks: Sequence[tuple[float, bytes]], tokens: int, loop_ns: int) -> Json:
    texts: list[str] = []
    times: list[float] = []
    told: Json = {}
    for at, chunk in chunks:
        for event in events([chunk]):
            told |= event
            if text := "".join(choice["text"] for choice in event.get("choices", ())):
                texts.append(text)
                times.append(at)
    if "error" in told or told["usage"]["completion_tokens"] != tokens:
        raise DaemonFailed(f"The daemon did not decode {tokens} tokens: {told}")
    return {
        "us_per_token": (times[-1] - times[0]) / (tokens - 1) * 1e6,
        "engine_us": told["timings"]["predicted_ms"] * 1e3 / (tokens - 1),
        "loop_cpu_us": loop_ns / tokens / 1e3,
        "text": "".join(texts),
    }


@contextmanager
def contestants(task: Task, state: Path) -> Iterator[dict[str, LoopProcess | HttpStream]]:
    with ExitStack() as stack:
        options = ("--model-threads", str(task.threads), "--n-ctx", str(task.n_ctx))
        daemon = stack.enter_context(Daemon(task.model, state, options))
        loops = {kind: LoopProcess(kind, task) for kind in ("bare", "engine")}
        for loop in loops.values():
            stack.callback(loop.close)
        yield {**loops, "daemon": HttpStream(daemon, task)}


def measure(task: Task, state: Path, rounds: int) -> tuple[dict[str, Pace], bool]:
    """The pace of each, and whether all texts were equal. The first round is not counted."""
    runs: dict[str, list[Json]] = {name: [] for name in NAMES}
    with contestants(task, state) as racing:
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}")
            for step in range(len(NAMES)):
                name = NAMES[(number + step) % len(NAMES)]
                runs[name].append(racing[name].run())
    texts = {run["text"] for each in runs.values() for run in each}
    return {name: _pace(runs[name][1:]) for name in NAMES}, len(texts) == 1


def _pace(runs: Sequence[Json]) -> Pace:
    def of(key: str) -> Spread | None:
        return spread(run[key] for run in runs) if key in runs[0] else None

    return Pace(spread(run["us_per_token"] for run in runs), of("engine_us"), of("loop_cpu_us"))


def show(paces: dict[str, Pace], same: bool) -> None:
    right = ("us PER TOKEN", "TOKENS/s", "OF BARE", "ADDS us", "ENGINE us", "LOOP CPU us")
    columns = (Column(""), *(Column(title, right=True) for title in right))
    bare = paces["bare"].us.median
    rows = [
        (
            name,
            pace.us,
            1e6 / pace.us.median,
            bare / pace.us.median,
            pace.us.median - bare,
            pace.inside_us.median if pace.inside_us else "",
            pace.loop_cpu_us.median if pace.loop_cpu_us else "",
        )
        for name, pace in paces.items()
    ]
    results.show("One stream, greedy; medians over the rounds", columns, rows)
    print(f"\nThe texts are {'equal' if same else 'NOT equal'}.")


def main(
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "smollm2",
    tokens: Annotated[int, typer.Option(help="Tokens to decode each time.", min=2)] = 256,
    rounds: Annotated[int, typer.Option(help="Rounds that count.", min=1)] = 6,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    n_ctx: Annotated[int, typer.Option(help="Tokens of every context.")] = 8192,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Decoding speed of one stream: bare llama.cpp, sessiond's engine, the daemon over HTTP."""
    if quick:
        model, tokens, rounds, n_ctx = "hybrid-tiny", 32, 2, 1024
    before = environment()
    with workplace() as folder:
        prompt = folder / "prompt.txt"
        prompt.write_text(words(PROMPT_TOKENS, "decode"), encoding="utf-8")
        task = Task(model_path(model), tokens, threads or physical_cores(), n_ctx, prompt)
        paces, same = measure(task, folder / "state", rounds)
    ratio = paces["bare"].us.median / paces["daemon"].us.median
    goals = [Goal("daemon over HTTP / bare llama.cpp, tokens per s", ratio, OF_BARE)]
    document = results.document(
        "bench_decode",
        {
            **{"model": model, "tokens": tokens, "rounds": rounds, "n_ctx": n_ctx},
            **{"threads": task.threads, "prompt_tokens": PROMPT_TOKENS},
        },
        {
            "paces": {name: asdict(pace) for name, pace in paces.items()},
            "daemon_of_bare": ratio,
            "added_us_per_token": paces["daemon"].us.median - paces["bare"].us.median,
            "texts_equal": same,
        },
        goals,
        before,
    )
    if not as_json:
        show(paces, same)
        results.show_goals(goals)
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


def _open_end(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise TypeError("the process was started without a pipe")
    return stream


if __name__ == "__main__":
    run(main)
