"""What a warm turn costs with llama.cpp's flash attention and without it, by its new tokens.

Two contexts of one model, which differ in that alone, hold the same text. In turns they evaluate
so many tokens more, as the prefill of a turn does: a batch of that size, on top of what is there.
Nothing of sessiond but its engine's bindings is in it. Says whether `model.flash_attn = false` is
worth it on this machine; it cannot be changed for one turn, for it is part of what state is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from scripts import results
from scripts.bench import MODEL_HELP, AsJson, Out, Quick, model_path, name_of, run
from scripts.results import Json, Spread, environment, progress, spread
from sessiond.cli.output import Column
from sessiond.engine.context import Context
from sessiond.engine.llama import LlamaContext, LlamaModel, physical_cores, start_backend
from sessiond.engine.memory import Tokens, as_tokens
from sessiond.engine.settings import ContextSettings

SCRIPT = "bench_attention"
SIZES = (1, 8, 24, 48, 63, 64, 96, 192)
"""Tokens of one batch."""
ROOM = 256
_FIRST, _LAST = 100, 400
"""Token ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Milliseconds to evaluate `size` tokens, with flash attention and without it."""

    size: int
    flash: Spread
    plain: Spread

    @property
    def ratio(self) -> float:
        return self.flash.median / self.plain.median


@dataclass(frozen=True, slots=True)
class Plan:
    """`held` tokens lie before each batch."""

    held: int
    sizes: tuple[int, ...]
    rounds: int
    threads: int


def measure(model: str, plan: Plan) -> list[Batch]:
    path = model_path(model)
    start_backend()
    n_ctx = plan.held + sum(plan.sizes) + ROOM
    taken: dict[bool, list[list[float]]] = {True: [], False: []}
    with ExitStack() as stack:
        contexts: dict[bool, Context] = {}
        for flash in taken:
            settings = ContextSettings(path, n_ctx, 1, threads=plan.threads, flash_attn=flash)
            weights = stack.enter_context(closing(LlamaModel(settings)))
            contexts[flash] = stack.enter_context(closing(LlamaContext(weights, settings)))
        for number in range(plan.rounds):
            progress(f"round {number + 1} of {plan.rounds}")
            for flash in (True, False) if number % 2 else (False, True):
                taken[flash].append(_round(contexts[flash], plan, number))
    columns = {flash: list(zip(*rounds, strict=True)) for flash, rounds in taken.items()}
    return [
        Batch(size, spread(columns[True][at]), spread(columns[False][at]))
        for at, size in enumerate(plan.sizes)
    ]


def _round(context: Context, plan: Plan, number: int) -> list[float]:
    """Milliseconds of each size, one on top of the other: no memory has to be rewound."""
    context.clear()
    drawn = np.random.default_rng(number).integers(_FIRST, _LAST, plan.held + sum(plan.sizes))
    tokens, at = as_tokens(drawn), 0
    while at < plan.held:
        stop = min(at + context.n_batch, plan.held)
        at += _evaluated(context, tokens[at:stop], at)
    times = []
    for size in plan.sizes:
        began = time.perf_counter()
        at += _evaluated(context, tokens[at : at + size], at)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def _evaluated(context: Context, tokens: Tokens, start: int) -> int:
    context.decode(tokens, start, 0, logits=True)
    context.logits(-1)
    return len(tokens)


def show(found: Sequence[Batch]) -> None:
    heads = ("FLASH ms", "PLAIN ms", "FLASH / PLAIN")
    columns = [Column("NEW TOKENS", right=True), *(Column(head, right=True) for head in heads)]
    rows = [(each.size, each.flash, each.plain, each.ratio) for each in found]
    results.show("A batch with flash attention and without, median (least-most)", columns, rows)


def summary(each: Batch) -> Json:
    return {**asdict(each), "ratio": each.ratio}


def main(
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "smollm2",
    held: Annotated[int, typer.Option(help="Tokens in the context before.", min=1)] = 2_048,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Milliseconds of a turn's prefill with flash attention and without."""
    plan = Plan(held, SIZES, rounds, threads or physical_cores())
    if quick:
        model, plan = "hybrid-tiny", Plan(64, (1, 24, 64), 1, 1)
    before = environment()
    found = measure(model, plan)
    told = {name_of(model): [summary(each) for each in found]}
    document = results.document(SCRIPT, asdict(plan), told, (), before)
    if not as_json:
        show(found)
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
