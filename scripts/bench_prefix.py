"""What a common front saves: a hundred prompts that share one, without reuse and with it.

Each prompt has the front as its system prompt and 20 to 50 tokens of its own. Fronts grow from 50
tokens to as many as the model's context has. Two daemons, on the same model and with the same
settings, are asked the same prompts over HTTP in turns, the one or the other first; `prefix_arms`
says what each of them remembers. Prompts without reuse take long, so only some of the hundred are
asked there, evenly spread; each has its twin with reuse.

Whether reuse changes what the model thinks is seen in the API's log probabilities, of the twenty
likeliest tokens in each place of a reply. What rounding alone does is measured beside it: a third
daemon evaluates the same prompts from their first token, in other batches.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts import plots, results
from scripts.bench import MODELS_HELP, AsJson, Out, Quick, model_path, name_of, run, workplace
from scripts.daemon import SETTLED_S, Json
from scripts.plots import Panel, Role
from scripts.prefix_arms import (
    LONGEST,
    Arm,
    Bytes,
    Likeness,
    Prompt,
    Scored,
    Shot,
    With,
    Without,
    common,
    daemon_of,
    likeness,
    prompts,
)
from scripts.results import Goal, Spread, environment, progress, spread
from sessiond.cli.output import Column
from sessiond.engine.gguf import read_header
from sessiond.engine.gguf_model import GgufModel, model_of

SCRIPT = "bench_prefix"
ARMS = ("without", "with")
FIRST_FRONT = 50
OTHER_BATCH = 24
TEMPLATE_TOKENS = 64
"""Room for what a template says around a prompt."""
BEYOND, SAME_PACE, OF_ROUNDING = 1.1, 1.05, 1.0
_LEAST = 1e-6
"""Of a log probability: less is no difference that a test of the ratio should see."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`prompts` with reuse and `cold` of them without, for each front; `sample` are compared."""

    prompts: int
    cold: int
    sample: int
    reply: int
    longest: int
    threads: int
    quiet: float = SETTLED_S


@dataclass(frozen=True, slots=True)
class Series:
    """Shots of one kind. `tenths`: ms to the first token that a tenth of them stay below, above."""

    ttft_ms: Spread
    tenths: tuple[float, float]
    token_ms: Spread
    evaluated: int
    sources: dict[str, int]


@dataclass(frozen=True, slots=True)
class Front:
    """All of one length. `tokens` are those that the prompts have in common, `share` their part.

    `beyond` is what was evaluated with reuse, as a multiple of the tokens that only this prompt
    has. `pairs` are the speed-up of each prompt asked both ways, and the share of its front.
    """

    tokens: int
    share: float
    without: Series
    reused: Series
    beyond: float
    speed_up: Spread
    pairs: list[tuple[float, float]]
    same_replies: float
    first: Bytes
    added: Bytes
    hit: Likeness
    rounding: Likeness

    @property
    def pace(self) -> float:
        """Time of a token of the reply with reuse, as a multiple of that without."""
        return self.reused.token_ms.median / self.without.token_ms.median


@dataclass(frozen=True, slots=True)
class Arms:
    without: Without
    reused: With


@dataclass(frozen=True, slots=True)
class Asked:
    """What the two daemons said of the prompts with one front. `scores` are those without reuse."""

    tokens: int
    cold: dict[int, Shot]
    hits: list[Shot]
    first: Bytes
    added: Bytes
    sample: list[Prompt]
    scores: list[list[Scored]]
    hit: Likeness


def fronts(longest: int) -> list[int]:
    """Words, each about twice as many as the one before, up to `longest`."""
    steps = max(1, round(math.log2(longest / FIRST_FRONT)))
    ratio = (longest / FIRST_FRONT) ** (1 / steps)
    return [round(FIRST_FRONT * ratio**step) for step in range(steps + 1)]


def longest_front(model: GgufModel, plan: Plan) -> int:
    """Words of the front that leaves room for the rest of the prompt and the reply."""
    room = model.n_ctx_train - LONGEST - TEMPLATE_TOKENS - plan.reply
    return min(room, plan.longest) if plan.longest else room


def measure(name: str, plan: Plan, template: Path | None) -> list[Front]:
    """`template` is for a model without one."""
    path = model_path(name)
    model = model_of([read_header(path)])
    template = None if model.template else template
    sizes = fronts(longest_front(model, plan))
    options = ["--n-ctx", str(2 * (sizes[-1] + TEMPLATE_TOKENS + LONGEST + plan.reply))]
    options += ["--max-active", "4", "--model-threads", str(plan.threads)]
    with workplace() as folder:
        with ExitStack() as stack:
            daemons = [daemon_of(path, folder, kind, options, template) for kind in ARMS]
            without, reused = (stack.enter_context(daemon) for daemon in daemons)
            arms = Arms(Without(without, plan.reply), With(reused, plan.reply, plan.quiet))
            asked = [ask(arms, name, size, plan) for size in sizes]
        batch = str(OTHER_BATCH)
        batches = (*options, "--model-n-batch", batch, "--model-n-ubatch", batch)
        with daemon_of(path, folder, "batches", batches, template) as daemon:
            progress(f"{name}: the sample, in batches of {batch} tokens")
            other = Without(daemon, plan.reply)
            return [front(each, other) for each in asked]


def ask(arms: Arms, name: str, size: int, plan: Plan) -> Asked:
    progress(f"{name}: a front of {size:,} words")
    first, further, *asked = prompts(size, plan.prompts + 2)
    known = arms.reused.learn(first)
    added = arms.reused.added(further)
    every = max(1, plan.prompts // plan.cold) if plan.cold else 1
    cold: dict[int, Shot] = {}
    hits: list[Shot] = []
    for number_, prompt in enumerate(asked):
        if number_ % every or len(cold) == (plan.cold or plan.prompts):
            hits.append(arms.reused.shot(prompt))
        elif len(cold) % 2:
            hits.append(arms.reused.shot(prompt))
            cold[number_] = arms.without.shot(prompt)
        else:
            cold[number_] = arms.without.shot(prompt)
            hits.append(arms.reused.shot(prompt))
    sample = asked[: plan.sample]
    scores = [arms.without.scores(prompt) for prompt in sample]
    return Asked(
        tokens=common(arms.without.tokens(first), arms.without.tokens(asked[0])),
        cold=cold,
        hits=hits,
        first=known,
        added=added,
        sample=sample,
        scores=scores,
        hit=compared(scores, arms.reused, sample),
    )


def compared(scores: Sequence[Sequence[Scored]], arm: Arm, sample: Sequence[Prompt]) -> Likeness:
    """All of the sample together: tokens in sum, differences at their largest."""
    pairs = zip(scores, sample, strict=True)
    found = [likeness(cold, arm.scores(prompt)) for cold, prompt in pairs]
    return Likeness(
        tokens=sum(each.tokens for each in found),
        agreed=sum(each.agreed for each in found),
        scores=max(each.scores for each in found),
        probability=max(each.probability for each in found),
    )


def front(asked: Asked, other_batches: Arm) -> Front:
    twins = [(shot, asked.hits[at]) for at, shot in asked.cold.items()]
    ratios = [cold.ttft_ms / hit.ttft_ms for cold, hit in twins]
    shares = [asked.tokens / cold.prompt for cold, _ in twins]
    own = sum(hit.prompt - asked.tokens for hit in asked.hits)
    return Front(
        tokens=asked.tokens,
        share=statistics.median(shares),
        without=series([*asked.cold.values()]),
        reused=series(asked.hits),
        beyond=sum(hit.evaluated for hit in asked.hits) / own,
        speed_up=spread(ratios),
        pairs=list(zip(shares, ratios, strict=True)),
        same_replies=statistics.fmean(cold.text == hit.text for cold, hit in twins),
        first=asked.first,
        added=asked.added,
        hit=asked.hit,
        rounding=compared(asked.scores, other_batches, asked.sample),
    )


def series(shots: Sequence[Shot]) -> Series:
    return Series(
        ttft_ms=spread(shot.ttft_ms for shot in shots),
        tenths=tenths([shot.ttft_ms for shot in shots]),
        token_ms=spread(shot.token_ms for shot in shots),
        evaluated=round(statistics.median(shot.evaluated for shot in shots)),
        sources=dict(Counter(shot.source for shot in shots)),
    )


def tenths(values: Sequence[float]) -> tuple[float, float]:
    """What the lowest tenth of the values stay below, and the highest tenth above."""
    if len(values) == 1:
        return values[0], values[0]
    cut = statistics.quantiles(values, n=10, method="inclusive")
    return cut[0], cut[-1]


def goals(found: dict[str, list[Front]]) -> list[Goal]:
    asked: list[Goal] = []
    for name, each in found.items():
        beyond = max(front.beyond for front in each)
        pace = statistics.median(front.pace for front in each)
        moved = max(front.hit.scores for front in each)
        rounding = max(_LEAST, *(front.rounding.scores for front in each))
        asked += [
            Goal(f"{name}: tokens evaluated / the prompt's own", beyond, BEYOND, False),
            Goal(f"{name}: time per token of the reply, with / without", pace, SAME_PACE, False),
            Goal(
                f"{name}: largest difference of the scores / that of rounding",
                moved / rounding,
                OF_ROUNDING,
                False,
            ),
        ]
    return asked


def show(name: str, found: Sequence[Front]) -> None:
    _table(
        f"{name}: time to the first token, median (least-most)",
        ("SHARE %", "WITHOUT ms", "WITH ms", "TIMES FASTER", "ms A TOKEN", "WITH"),
        found,
        lambda each: (
            100 * each.share,
            each.without.ttft_ms,
            each.reused.ttft_ms,
            each.speed_up,
            each.without.token_ms.median,
            each.reused.token_ms.median,
        ),
    )
    _table(
        f"{name}: what was evaluated, kept and changed by reuse",
        ("EVALUATED", "/ OWN", "MB FIRST", "MB MORE", "AGREED", "SCORES", "ROUNDING"),
        found,
        lambda each: (
            each.reused.evaluated,
            each.beyond,
            each.first.all / 1e6,
            each.added.all / 1e6,
            f"{each.hit.agreed} of {each.hit.tokens}",
            each.hit.scores,
            each.rounding.scores,
        ),
    )


def _table(
    title: str,
    right: Sequence[str],
    found: Sequence[Front],
    row: Callable[[Front], tuple[object, ...]],
) -> None:
    columns = [Column(head, right=True) for head in ("FRONT", *right)]
    results.show(title, columns, [(f"{each.tokens:,}", *row(each)) for each in found])


def draw(name: str, found: Sequence[Front], at: Path) -> None:
    """A picture beside the document `at`."""
    ms = [
        _line(label, role, [getattr(each, kind) for each in found])
        for label, role, kind in (
            ("without reuse", Role.OTHER, "without"),
            ("with reuse", Role.OURS, "reused"),
        )
    ]
    first = Panel(
        title="Time to the first token: median, and all but a tenth at either end",
        x_label="tokens of the common front",
        y_label="ms",
        x=[each.tokens for each in found],
        series=ms,
        log_x=True,
        log_y=True,
    )
    faster = Panel(
        title="How much faster: median, least and most",
        x_label="share of the common front in the prompt",
        y_label="times faster",
        x=[f"{100 * each.share:.1f} %" for each in found],
        series=_speed_up([each.speed_up for each in found], [each.share for each in found]),
        log_y=True,
    )
    place = at.with_name(f"{at.stem}-{name}.png")
    plots.save([first, faster], place, f"{name}: prompts with a common front")


def _line(label: str, role: Role, found: Sequence[Series]) -> plots.Series:
    low, high = ([each.tenths[end] for each in found] for end in (0, 1))
    return plots.Series(label, [each.ttft_ms.median for each in found], role, low, high)


def _speed_up(found: Sequence[Spread], shares: Sequence[float]) -> list[plots.Series]:
    low, high = [each.low for each in found], [each.high for each in found]
    best = [1 / (1 - share) for share in shares]
    return [
        plots.Series("with reuse", [each.median for each in found], Role.OURS, low, high),
        plots.Series("as many as tokens left out", best, Role.BOUND),
    ]


def summary(each: Front) -> Json:
    return {**asdict(each), "pace": each.pace}


def main(
    model: Annotated[str, typer.Option(help=MODELS_HELP)] = "smollm2",
    count: Annotated[int, typer.Option("--prompts", help="For each front, with reuse.", min=2)] = (
        100
    ),
    cold: Annotated[int, typer.Option(help="Of these also without; 0: all.", min=0)] = 10,
    sample: Annotated[int, typer.Option(help="Of these the scores are compared.", min=1)] = 2,
    reply: Annotated[int, typer.Option(help="Tokens of each reply.", min=2)] = 16,
    longest: Annotated[int, typer.Option(help="Words; 0: what the context has.", min=0)] = 0,
    template: Annotated[
        Path | None, typer.Option(help="For a model without one.", exists=True)
    ] = None,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Time to the first token of prompts with a common front, without reuse and with it."""
    plan = Plan(count, cold, sample, reply, longest, threads)
    if quick:
        model, plan = "hybrid-tiny", Plan(4, 2, 1, 4, 100, 1, 0.3)
    before = environment()
    found = {name_of(name): measure(name, plan, template) for name in model.split(",")}
    settings = {**asdict(plan), "own_tokens": "20-50", "other_batch": OTHER_BATCH}
    settings["template"] = template.name if template else ""
    document = results.document(
        SCRIPT,
        settings,
        {name: [summary(each) for each in fronts_] for name, fronts_ in found.items()},
        goals(found),
        before,
    )
    if out or not quick:
        for name, fronts_ in found.items():
            draw(name, fronts_, out or results.RESULTS / f"{SCRIPT}.json")
    if not as_json:
        for name, fronts_ in found.items():
            show(name, fronts_)
        results.show_goals(goals(found))
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
