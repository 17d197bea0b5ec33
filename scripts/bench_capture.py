"""What captures cost a prefill, next to the same prefill with blocking exports in their place.

Four take turns on one context. All but the first end their chunks at the same places: `none` has no
places, `chunks` captures nothing there, `capture` is sessiond's engine, and `blocking` exports a
snapshot at each. As in the daemon, nothing frozen is drained while the prefill goes on: the third
capture finds both spares taken and is direct, which means that it copies out the oldest one first;
what was copied out is taken away between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from scripts import results
from scripts.bench import AsJson, Out, Quick, model_path, run, words
from scripts.daemon import DaemonFailed, Json
from scripts.results import Goal, Spread, environment, number, progress, spread
from sessiond.cli.output import Column
from sessiond.engine.active import ActiveRun
from sessiond.engine.capture import Capture, CaptureCounts
from sessiond.engine.core import SPARES, EngineCore
from sessiond.engine.events import Delta, Event
from sessiond.engine.llama import LlamaContext, LlamaModel, start_backend
from sessiond.engine.memory import Tokens
from sessiond.engine.probe import probe
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.engine.sequence import Sequence as Line
from sessiond.engine.settings import ContextSettings
from sessiond.engine.staging import Staging
from sessiond.errors import SessiondError
from sessiond.sessions.placement import Place, places
from sessiond.sessions.prompt import Boundaries
from sessiond.store.loss import Rank

SHARE = 0.01
"""Of the prefill's engine milliseconds, at most so much is captures."""
FRONT, USERS = 0.3, (0.3, 0.65)
"""Of the prompt: where the system messages end and where user messages begin."""
WINDOW_SPARE = 512
_STAGING_CAP = 512 << 20


@dataclass(frozen=True, slots=True)
class Taken:
    """One capture before the first token: frozen or direct, and the engine's ms for it."""

    position: int
    rank: str
    how: str
    ms: float


@dataclass(frozen=True, slots=True)
class Prefill:
    """`prefill_ms` are the engine's up to the first token, `capture_ms` of them for captures.

    `after_ms` are those for captures from then on, until all are drained.
    """

    prefill_ms: float
    capture_ms: float
    after_ms: float
    counts: CaptureCounts
    taken: tuple[Taken, ...]
    snapshot_bytes: tuple[int, ...]

    @property
    def share(self) -> float:
        return self.capture_ms / self.prefill_ms


class Capturing(EngineCore):
    """The engine as it is, with a note on each capture."""

    taken: list[Taken]

    def _capture(self, sequence: Line, rank: int = 0) -> None:
        before = replace(self.captures)
        super()._capture(sequence, rank)
        now = self.captures
        how = "frozen" if now.frozen > before.frozen else "direct"
        how += ", pageable" if now.pageable > before.pageable else ""
        self.note(sequence, rank, how, now.engine_ms - before.engine_ms)

    def note(self, sequence: Line, rank: int, how: str, ms: float) -> None:
        self.taken.append(Taken(len(sequence), Rank(rank).name.lower(), how, ms))


class OnlyChunks(Capturing):
    def _capture(self, sequence: Line, rank: int = 0) -> None:
        pass


class Blocking(Capturing):
    """Copies the state out at once, into new memory, while the prefill waits."""

    def _capture(self, sequence: Line, rank: int = 0) -> None:
        began = time.monotonic()
        self.codec.export_snapshot(sequence.seq)
        elapsed = (time.monotonic() - began) * 1e3
        self.captures.engine_ms += elapsed
        self.note(sequence, rank, "blocking", elapsed)


KINDS: dict[str, type[Capturing]] = {
    "none": OnlyChunks,
    "chunks": OnlyChunks,
    "capture": Capturing,
    "blocking": Blocking,
}


class Laboratory:
    """One model's context and staging buffers, as the daemon opens them."""

    def __init__(self, model: LlamaModel, settings: ContextSettings, staging: Staging) -> None:
        self.model = model
        self.context = LlamaContext(model, settings)
        self.staging = staging

    def prefill(self, kind: str, prompt: Tokens, where: Sequence[Place]) -> Prefill:
        """Evaluates `prompt` from nothing and samples one token."""
        self.context.clear()
        core = KINDS[kind](self.model, self.context, self.staging)
        core.taken = []
        first = FirstToken(core)
        first.active = core.start(_run(prompt, () if kind == "none" else where), first)
        sizes: list[int] = []
        while core.busy:
            core.step()
            sizes += _released(core.take_drained())
        if not first.prefill_ms:
            raise DaemonFailed(f"{len(prompt)} tokens did not fit into the context.")
        sizes += _released(core.drain())
        return Prefill(
            prefill_ms=first.prefill_ms,
            capture_ms=first.counts.engine_ms,
            after_ms=core.captures.engine_ms - first.counts.engine_ms,
            counts=first.counts,
            taken=first.taken,
            snapshot_bytes=tuple(sizes),
        )


class FirstToken:
    """Keeps what the engine had spent when the first token came."""

    active: ActiveRun

    def __init__(self, core: Capturing) -> None:
        self._core = core
        self.prefill_ms = 0.0
        self.counts = CaptureCounts()
        self.taken: tuple[Taken, ...] = ()

    def __call__(self, event: Event | SessiondError) -> None:
        if isinstance(event, SessiondError):
            raise event
        if isinstance(event, Delta) and not self.prefill_ms:
            self.prefill_ms = self.active.prefill_ms
            self.counts = replace(self._core.captures)
            self.taken = tuple(self._core.taken)


def _run(prompt: Tokens, where: Sequence[Place]) -> Run:
    return Run(
        seq=0,
        prompt=prompt,
        start=0,
        limit=len(prompt) + 1,
        sampling=Sampling(temperature=0),
        ending=Ending(max_tokens=1, ignore_eos=True),
        captures=tuple(place.position for place in where),
        capture_end=True,
        ranks={place.position: place.rank for place in where},
        end_rank=Rank.END,
    )


def _released(captures: Sequence[Capture]) -> list[int]:
    """Their bytes; another thread would copy them away meanwhile, here nothing is kept."""
    sizes = [len(capture.payload) for capture in captures]
    for capture in captures:
        capture.release()
    return sizes


@contextmanager
def laboratory(path: Path, tokens: int, threads: int) -> Iterator[Laboratory]:
    settings = ContextSettings(
        model=path, n_ctx=tokens + WINDOW_SPARE, n_seq_max=2 + SPARES, threads=threads
    )
    verdict = probe(settings)
    if verdict.codec == "whole":
        raise typer.BadParameter(f"{path.name} has no snapshots: {verdict.detail}")
    start_backend()
    staging = Staging.open(verdict.snapshot_bytes, _STAGING_CAP)
    try:
        yield Laboratory(LlamaModel(settings), settings, staging)
    finally:
        staging.close()


def places_of(tokens: int) -> tuple[Place, ...]:
    """Those of a first request: a front, two user messages, P - 1, and steps between them."""
    users = tuple(round(share * tokens) for share in USERS)
    return places(tokens, 0, Boundaries(round(FRONT * tokens), users))


def measure(name: str, tokens: int, rounds: int, threads: int) -> dict[str, list[Prefill]]:
    """One prefill comes first and does not count: windows grow the staging buffers in it."""
    where, kinds = places_of(tokens), list(KINDS)
    found: dict[str, list[Prefill]] = {kind: [] for kind in kinds}
    with laboratory(model_path(name), tokens, threads) as bench:
        text = words(2 * tokens, name)
        prompt = bench.model.tokenize(text, add_special=True, parse_special=False)[:tokens]
        progress(f"{name}: warming up")
        bench.prefill("capture", prompt, where)
        for turn in range(rounds):
            progress(f"{name}: round {turn + 1} of {rounds}")
            first = turn % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                found[kind].append(bench.prefill(kind, prompt, where))
    return found


def share(prefills: Sequence[Prefill]) -> Spread:
    return spread(each.share for each in prefills)


def against(found: dict[str, list[Prefill]], kind: str) -> Spread:
    """Prefill ms of `kind` as a multiple of that of `chunks` in the same round."""
    pairs = zip(found[kind], found["chunks"], strict=True)
    return spread(mine.prefill_ms / other.prefill_ms for mine, other in pairs)


def goals(found: dict[str, dict[str, list[Prefill]]]) -> list[Goal]:
    return [
        Goal(f"{name}: captures / prefill", share(kinds["capture"]).median, SHARE, at_least=False)
        for name, kinds in found.items()
    ]


def summary(kinds: dict[str, list[Prefill]]) -> Json:
    return {
        kind: {
            "prefill_ms": spread(each.prefill_ms for each in once)._asdict(),
            "capture_ms": spread(each.capture_ms for each in once)._asdict(),
            "share": share(once)._asdict(),
            "after_ms": spread(each.after_ms for each in once)._asdict(),
            "of_chunks": against(kinds, kind)._asdict(),
            "rounds": [asdict(each) for each in once],
        }
        for kind, once in kinds.items()
    }


def show(name: str, kinds: dict[str, list[Prefill]]) -> None:
    right = ("PREFILL MS", "FOR CAPTURES MS", "SHARE %", "AFTERWARDS MS", "OF CHUNKS")
    rows = [
        (
            kind,
            spread(each.prefill_ms for each in once),
            spread(each.capture_ms for each in once),
            spread(100 * each.share for each in once),
            spread(each.after_ms for each in once),
            against(kinds, kind),
        )
        for kind, once in kinds.items()
    ]
    columns = (Column("KIND"), *(Column(title, right=True) for title in right))
    results.show(f"{name}: until the first token, median (least-most)", columns, rows)
    _show_captures(kinds)


def _show_captures(kinds: dict[str, list[Prefill]]) -> None:
    ours, theirs = kinds["capture"], kinds["blocking"]
    rows = [
        (
            one.position,
            one.rank,
            one.how,
            spread(each.taken[at].ms for each in ours),
            spread(each.taken[at].ms for each in theirs),
        )
        for at, one in enumerate(ours[-1].taken)
    ]
    right = (Column("MS", right=True), Column("BLOCKING MS", right=True))
    columns = (Column("CAPTURE AT", right=True), Column("RANK"), Column("HOW"), *right)
    size = max(ours[-1].snapshot_bytes, default=0) / 2**20
    results.show(f"Captures before the first token, {number(size)} MiB each", columns, rows)
    if ours[-1].counts.direct:
        print("\ndirect: both spares were taken, so the oldest capture was copied out first")


def main(
    models: Annotated[
        str, typer.Option(help="Names, with commas.")
    ] = "hybrid-tiny,mamba2-tiny,gemma3-270m",
    large: Annotated[bool, typer.Option("--large", help="The 0.8B-shaped hybrid too.")] = False,
    tokens: Annotated[int, typer.Option(help="Length of the prompt.", min=64)] = 4000,
    rounds: Annotated[int, typer.Option(help="Prefills of each kind.", min=1)] = 3,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What captures cost a long prefill, and what blocking exports would have cost."""
    if quick:
        models, large, tokens, rounds, threads = "hybrid-tiny", False, 400, 1, 1
    before = environment()
    names = [*models.split(","), *(["hybrid-0.8b"] if large else [])]
    found = {name: measure(name, tokens, rounds, threads) for name in names}
    document = results.document(
        "bench_capture",
        {
            "tokens": tokens,
            "rounds": rounds,
            "threads": threads,
            "places": [{"at": p.position, "rank": p.rank.name.lower()} for p in places_of(tokens)],
        },
        {name: summary(kinds) for name, kinds in found.items()},
        goals(found),
        before,
    )
    if not as_json:
        for name, kinds in found.items():
            show(name, kinds)
        results.show_goals(goals(found))
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
