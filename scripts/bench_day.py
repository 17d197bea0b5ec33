"""A day of agents, event by event: what each costs here, at the least, and with another server.

Traces are played to sessiond and, where one is named, to another server: a stock llama-server that
is started here with the options that fit agents best, or any OpenAI-compatible one that runs. Each
gets the replies that it gave itself. They take turns with every trace and round, each with an empty
state, one at a time. The lower bound is computed from the texts (`scripts/day/bound.py`).

Goals: never more tokens than the other server, nor more than an event's bound allows, and no later
first token: in the median of warm events, in sum, and in sum of those after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from scripts import results
from scripts.bench import (
    MODEL_HELP,
    MODELS,
    AsJson,
    Out,
    Quick,
    model_path,
    name_of,
    run,
    workplace,
)
from scripts.daemon import Json
from scripts.day import report, trace
from scripts.day.bound import Count
from scripts.day.llama_server import LlamaServer, options_of
from scripts.day.replay import Day, Played, judged, play
from scripts.day.servers import Elsewhere, Place, Server, Sessiond
from scripts.day.trace import Trace, TraceError
from scripts.fetch_models import ROOT
from scripts.results import RESULTS, environment, progress
from scripts.rivals import Key, Launch, LaunchOptions, Rivals, Url, rivals_of
from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.llama import LlamaModel, physical_cores, start_backend
from sessiond.engine.memory import Tokens
from sessiond.engine.settings import ContextSettings
from sessiond.sessions.transcript import read_chat

QUICK_TRACES = ("regenerate",)
TEMPLATES = ROOT / "tests" / "templates"
OWN_TEMPLATES = {name: TEMPLATES / "qwen.jinja" for name in MODELS} | {
    "gemma3-270m": TEMPLATES / "gemma_code.jinja"
}
"""Of the models of scripts.bench: their own have no tools, or there is none."""
STOCK = LlamaServer.name
Make = Callable[[Path], Server]
"""A server whose files lie in a new folder."""


@dataclass(frozen=True, slots=True)
class Task:
    traces: tuple[Trace, ...]
    place: Place
    scale: float
    rounds: int


def servers(task: Task, rivals: Rivals) -> dict[str, Make]:
    place, binary = task.place, rivals.binary
    found: dict[str, Make] = {"sessiond": lambda folder: Sessiond.of(place, folder / "state")}
    if binary:
        found[STOCK] = lambda folder: LlamaServer(binary, place, folder, rivals.options)
    if rivals.url:
        found[rivals.url] = lambda folder: Elsewhere(rivals.url, rivals.key)
    return found


def days(task: Task, making: dict[str, Make], folder: Path) -> dict[str, dict[str, list[Day]]]:
    """By trace and server, a day for each round. Who begins changes every time."""
    played: dict[str, dict[str, list[Played]]] = {}
    names = list(making)
    turn = 0
    for number in range(task.rounds):
        for one in task.traces:
            for step in range(len(names)):
                name = names[(turn + step) % len(names)]
                progress(f"round {number + 1} of {task.rounds}: {one.name}, {name}")
                place = folder / f"{one.name}-{number}-{step}"
                place.mkdir()
                done = play(one, making[name](place), task.scale)
                played.setdefault(one.name, {n: [] for n in names})[name].append(done)
            turn += 1
    progress("computing the bounds")
    with counting(task.place) as count:
        return {
            trace_: {name: [judged(one, count) for one in rounds] for name, rounds in by.items()}
            for trace_, by in played.items()
        }


@contextmanager
def counting(place: Place) -> Iterator[Count]:
    """Counts with the model's own vocabulary and template, whatever the server makes of them."""
    start_backend()
    model = LlamaModel(ContextSettings(place.model, 0, 1, n_gpu_layers=0))
    source = place.template.read_text() if place.template else model.info.chat_template
    try:
        yield count_with(TemplateRenderer(model, ChatTemplate(source) if source else None))
    finally:
        model.close()


def count_with(renderer: TemplateRenderer) -> Count:
    now = datetime.now(UTC)

    def count(messages: Sequence[Json], tools: Sequence[Json]) -> Tokens:
        return renderer.full(read_chat(list(messages), list(tools)), now)

    return count


def settings_of(task: Task, model: str, making: dict[str, Make], more: Sequence[str]) -> Json:
    template = task.place.template
    place = asdict(task.place) | {"model": model, "template": template.name if template else ""}
    settings = place | {"scale": task.scale, "rounds": task.rounds, "servers": list(making)}
    settings["traces"] = {one.name: one.header.about for one in task.traces}
    if STOCK in making:
        told = (*options_of(task.place, Path("slots")), *more)
        settings["llama_server"] = [option.removeprefix(f"{ROOT}/") for option in told]
    return settings


def draw(
    found: Mapping[str, report.Days], traces: Sequence[Trace], folder: Path, model: str
) -> list[Path]:
    """The whole day, then each trace."""
    whole = report.plot_day(found, folder, f"{model}: a day of agents")
    return [whole, *(report.plot(one, found[one.name], folder) for one in traces)]


def main(
    trace_: Annotated[
        list[str] | None,
        typer.Option("--trace", help="Name or file; may be repeated. Not said: all."),
    ] = None,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "smollm2",
    template: Annotated[
        Path | None, typer.Option(help="A chat template instead of the model's.", exists=True)
    ] = None,
    scale: Annotated[float, typer.Option(help="Lengths of texts.", min=0.01, max=100)] = 1.0,
    n_ctx: Annotated[int, typer.Option(help="Tokens of the context.", min=512)] = 8192,
    slots: Annotated[int, typer.Option(help="Talks in the context at once.", min=1)] = 4,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    url: Url = "",
    key: Key = "",
    launch: Launch = None,
    launch_options: LaunchOptions = "",
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots.")] = None,
) -> None:
    """Play agents' traces to sessiond and another server; count tokens, time, bytes and memory."""
    rivals = rivals_of(launch, launch_options, url, key)
    if quick:
        trace_, model, scale = list(trace_ or QUICK_TRACES), "hybrid-tiny", 0.05
        n_ctx, threads, rounds = 2048, threads or 1, 1
    try:
        traces = tuple(trace.named(trace_ or []))
    except TraceError as error:
        raise typer.BadParameter(str(error), param_hint="--trace") from error
    shown = template or OWN_TEMPLATES.get(model)
    place = Place(model_path(model), shown, n_ctx, slots, threads or physical_cores())
    task = Task(traces, place, scale, rounds)
    making = servers(task, rivals)
    before = environment()
    with workplace() as folder:
        found = days(task, making, folder)
    goals = report.goals_of(found, traces)
    document = results.document(
        "bench_day",
        settings_of(task, model, making, rivals.options),
        report.as_json(found, traces),
        goals,
        before,
    )
    document |= {"sums": report.whole_json(found, traces), "beyond": report.beyond(found)}
    kept = RESULTS / "day" / name_of(model)
    where = plots or (None if quick else kept)
    pictures = draw(found, traces, where, name_of(model)) if where else []
    if not as_json:
        report.show(found)
        for name, by in found.items():
            report.show_events(name, by)
        results.show_goals(goals)
        results.show_environment(before)
        for picture in pictures:
            print(f"Plotted in {picture}")
    results.finish(
        document,
        as_json=as_json,
        keep=not quick,
        out=out or (None if quick else kept.with_name(f"{kept.name}.json")),
    )


if __name__ == "__main__":
    run(main)
