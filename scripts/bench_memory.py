"""What a daemon takes: idle, for each session, for the ring, and over a thousand turns.

Idle, sessions and ring are measured with real models, whose weights are told apart from what is the
process's own. A resident session is in the context, whose memory is taken at the start, so what it
adds is its past and what is kept to go back. A parked one is on disk: the daemon was started anew,
with many of them and with one.
The thousand turns are the fake engine's, see `growth_turns`: with it, all that grows is sessiond's.
`bench_footprint` looks at processor time and wake-ups instead.

A turn of a kept session adds what has to stay while the session can go on, so memory grows with it:

- each token's number, 4 bytes, in the turn and in the whole paths that the tree keeps ready, of
  which there are `CACHED_PATHS`; each byte of its text once;
- its records, at most `RECORDS` bytes however long it is. tracemalloc says 2.3 kB for a turn in the
  tree (figures, messages, digests, heads of arrays) and 0.3 kB for the last day's history; the rest
  is room for dictionaries that grow in leaps and for what malloc cannot use.

The goal is their sum for the tokens that a turn had here, one byte of text each. What snapshots in
the ring have beside their bytes is not in it: that has to be bounded by the ring.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from scripts import plots, results
from scripts.bench import MODELS_HELP, AsJson, Out, Quick, model_path, name_of, run, workplace
from scripts.bench_footprint import WORDS, again, disk_of, memory_of, resident, talk
from scripts.bench_ring import settled
from scripts.daemon import SETTLED_S, Daemon, Json
from scripts.growth_turns import KEPT_SESSIONS, WARM_UP, Dropped, Growth, Kept, grow, tokens_of
from scripts.plots import Panel, Role, Series
from scripts.results import Goal, environment, number, progress
from sessiond.cli.output import Column
from sessiond.sessions.tree import CACHED_PATHS

SCRIPT = "bench_memory"
LEAST_LINE = 512
"""Tokens of the context for each resident session: its prompt of 200 words, its reply, and room."""
MOST_TURNS = 400
OVER_RING, PER_TURN, STILL = 1.1, 2_000.0, 0.001
"""Memory for each byte in the ring; bytes that a turn of a deleted session may leave; threads and
files that one may."""
OF_TOKEN, OF_TEXT, RECORDS = 4 * (1 + CACHED_PATHS), 1, 4_000
"""Bytes of memory that a turn of a kept session may add: of each token, of each byte of text, and
however long it is."""
GROWTH = ("TURNS", "OWN MB", "kB A TURN", "DISK MB", "kB A TURN", "THREADS", "FILES")
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Standing:
    """Bytes: all that is resident, what is the process's own and no file's, the ring, the disk."""

    sessions: int
    rss: int
    own: int
    ring: int
    disk: int


@dataclass(frozen=True, slots=True)
class Each:
    """Bytes that one session adds, and the tokens that it has."""

    own: float
    ring: float
    disk: float
    tokens: float


class Came(NamedTuple):
    """Bytes that the process had more after a while, and those that the ring had more."""

    own: int
    ring: int


@dataclass(frozen=True, slots=True)
class Ring:
    """When it was full. `came`: since the first turns, which fill other places too."""

    budget: int
    bytes: int
    entries: int
    came: Came
    turns: int

    @property
    def of_bytes(self) -> float:
        """Memory for each byte that came into the ring."""
        return self.came.own / self.came.ring if self.came.ring else 0.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one model. `weights` is its file; `ring` is None where nothing needs snapshots.

    `first`: after the first turn, which also brings what is loaded when it is first needed.
    """

    weights: int
    idle: Standing
    first: Standing
    resident: Standing
    one_parked: Standing
    parked: Standing
    per_resident: Each
    per_parked: Each
    ring: Ring | None


@dataclass(frozen=True, slots=True)
class Plan:
    resident: int
    parked: int
    ring: int
    turns: int
    threads: int
    quiet: float = SETTLED_S
    template: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        lines = ("--max-active", str(self.resident), "--n-ctx", str(self.resident * LEAST_LINE))
        told = ("--model-chat-template-file", str(self.template)) if self.template else ()
        return (*lines, "--model-threads", str(self.threads), *told)


def standing(daemon: Daemon, quiet: float) -> Standing:
    """When all is saved and nothing comes into the ring any more."""
    daemon.wait_until_saved(quiet)
    health = settled(daemon)
    memory = memory_of(daemon.pid)
    return Standing(
        sessions=health["sessions"],
        rss=memory.rss,
        own=memory.anonymous,
        ring=health["ring_bytes"],
        disk=disk_of(daemon.state),
    )


def sizes(name: str, plan: Plan) -> Sizes:
    path = model_path(name)
    progress(f"{name}: {plan.resident} sessions in the context")
    with workplace() as folder, Daemon(path, folder / "state", plan.options) as daemon:
        idle = standing(daemon, plan.quiet)
        talk(daemon, "first")
        first = standing(daemon, plan.quiet)
        resident(daemon, plan.resident - 1)
        full, tokens = standing(daemon, plan.quiet), tokens_of(daemon)
    progress(f"{name}: {plan.parked} sessions, parked")
    with workplace() as folder, Daemon(path, folder / "state", plan.options) as daemon:
        talk(daemon, "first")
        again(daemon)
        one = standing(daemon, plan.quiet)
        resident(daemon, plan.parked - 1)
        again(daemon)
        parked, parked_tokens = standing(daemon, plan.quiet), tokens_of(daemon)
    return Sizes(
        weights=path.stat().st_size,
        idle=idle,
        first=first,
        resident=full,
        one_parked=one,
        parked=parked,
        per_resident=each(first, full, tokens),
        per_parked=each(one, parked, parked_tokens),
        ring=ring(path, plan) if full.ring else None,
    )


def each(before: Standing, after: Standing, tokens: int) -> Each:
    """`tokens` are those of all sessions."""
    count = max(after.sessions - before.sessions, 1)
    return Each(
        own=(after.own - before.own) / count,
        ring=(after.ring - before.ring) / count,
        disk=(after.disk - before.disk) / count,
        tokens=tokens / after.sessions,
    )


def ring(path: Path, plan: Plan) -> Ring:
    """New sessions talk until no further snapshot fits, or for so many turns."""
    progress(f"{path.stem}: a ring of {plan.ring:,} bytes")
    options = (*plan.options, "--checkpoints-ram", str(plan.ring))
    with workplace() as folder, Daemon(path, folder / "state", options) as daemon:
        turns = _talk_on(daemon, 0, plan.resident)
        before = standing(daemon, plan.quiet)
        while has_room(health := settled(daemon)) and turns < MOST_TURNS:
            turns = _talk_on(daemon, turns, plan.resident)
        after = standing(daemon, plan.quiet)
    came = Came(after.own - before.own, after.ring - before.ring)
    return Ring(plan.ring, after.ring, health["ring_entries"], came, turns)


def _talk_on(daemon: Daemon, turns: int, more: int) -> int:
    for turn in range(turns, turns + more):
        talk(daemon, f"ring {turn}")
    return turns + more


def has_room(health: Json) -> bool:
    """For one more snapshot, as large as the others."""
    used, entries = health["ring_bytes"], max(health["ring_entries"], 1)
    return bool(used + used / entries <= health["ring_budget"])


def growth(turns: int) -> dict[str, Growth]:
    found: dict[str, Growth] = {}
    for name, talks in (("kept", Kept()), ("dropped", Dropped())):
        progress(f"{turns:,} turns, {name}")
        with workplace() as folder:
            found[name] = grow(folder, talks, turns)
    return found


def must_stay(tokens: float) -> float:
    """Bytes at most of a turn that adds so many tokens of one byte of text each."""
    return RECORDS + (OF_TOKEN + OF_TEXT) * tokens


def goals(found: dict[str, Sizes], grown: dict[str, Growth]) -> list[Goal]:
    asked = [
        Goal(f"{name}: memory for each byte in the ring", one.ring.of_bytes, OVER_RING, False)
        for name, one in found.items()
        if one.ring
    ]
    kept, dropped = grown["kept"], grown["dropped"].slopes
    return [
        *asked,
        Goal(
            f"memory that a turn of a kept session adds, {kept.tokens:.0f} tokens, bytes",
            kept.slopes["own"],
            must_stay(kept.tokens),
            False,
        ),
        *(
            Goal(f"{what} that a turn of a deleted session leaves, bytes", left, PER_TURN, False)
            for what, left in (("memory", dropped["own"]), ("disk", dropped["disk"]))
        ),
        *(
            Goal(f"{kind} that a turn leaves, {name}", one.slopes[kind], STILL, False)
            for name, one in grown.items()
            for kind in ("threads", "files")
        ),
    ]


def draw(grown: dict[str, Growth], at: Path) -> None:
    """A picture beside the document `at`."""
    turns = [look.turn for look in grown["kept"].looks]
    labels = {"kept": "20 sessions, kept", "dropped": "one after the other, deleted"}
    roles = {"kept": Role.OTHER, "dropped": Role.OURS}
    panels = [
        Panel(
            title=title,
            x_label="turns of the fake engine",
            y_label="MB",
            x=turns,
            series=[
                Series(labels[name], [getattr(look, kind) / _MB for look in one.looks], roles[name])
                for name, one in grown.items()
            ],
        )
        for kind, title in (("own", "Memory of the daemon's own"), ("disk", "On disk"))
    ]
    plots.save(panels, at.with_name(f"{at.stem}-growth.png"), "A daemon, turn after turn")


def summary(one: Sizes) -> Json:
    told = asdict(one)
    if one.ring:
        told["ring"]["of_bytes"] = one.ring.of_bytes
    return told


def show(found: dict[str, Sizes], grown: dict[str, Growth]) -> None:
    _show_standings(found)
    _show_sessions(found)
    columns = [Column("SESSIONS"), *(Column(head, right=True) for head in GROWTH)]
    rows = [
        (
            name,
            one.looks[-1].turn,
            one.looks[-1].own / _MB,
            one.slopes["own"] / 1e3,
            one.looks[-1].disk / _MB,
            one.slopes["disk"] / 1e3,
            one.looks[-1].threads,
            one.looks[-1].files,
        )
        for name, one in grown.items()
    ]
    results.show("Turns of the fake engine, growth after the warm-up", columns, rows)


def _show_standings(found: dict[str, Sizes]) -> None:
    heads = ("WEIGHTS MB", "RSS MB", "OWN MB", "RING MB", "DISK MB")
    columns = [Column("DAEMON"), *(Column(head, right=True) for head in ("SESSIONS", *heads))]
    rows = [
        (
            f"{name}, {kind}",
            one.sessions,
            sizes.weights / _MB,
            one.rss / _MB,
            one.own / _MB,
            one.ring / _MB,
            one.disk / _MB,
        )
        for name, sizes in found.items()
        for kind, one in (
            ("idle", sizes.idle),
            ("one", sizes.first),
            ("resident", sizes.resident),
            ("one parked", sizes.one_parked),
            ("parked", sizes.parked),
        )
    ]
    results.show("What a daemon takes", columns, rows)


def _show_sessions(found: dict[str, Sizes]) -> None:
    heads = ("TOKENS", "OWN kB", "OF IT RING kB", "DISK kB")
    columns = [Column("EACH SESSION"), *(Column(head, right=True) for head in heads)]
    rows = [
        (f"{name}, {kind}", each.tokens, each.own / 1e3, each.ring / 1e3, each.disk / 1e3)
        for name, sizes in found.items()
        for kind, each in (("resident", sizes.per_resident), ("parked", sizes.per_parked))
    ]
    results.show("What a session adds", columns, rows)
    for name, sizes in found.items():
        if ring := sizes.ring:
            print(
                f"\n{name}: a ring of {number(ring.bytes / _MB)} MB in {ring.entries} snapshots,"
                f" of {number(ring.budget / _MB)} allowed; each byte of it takes"
                f" {number(ring.of_bytes)} bytes"
            )


def settings_of(plan: Plan) -> Json:
    told = {**asdict(plan), "template": plan.template.name if plan.template else ""}
    return told | {"words": WORDS, "kept_sessions": KEPT_SESSIONS, "warm_up": WARM_UP}


def main(
    model: Annotated[str, typer.Option(help=MODELS_HELP)] = "smollm2,hybrid-tiny",
    sessions: Annotated[int, typer.Option(help="In the context.", min=1)] = 16,
    parked: Annotated[int, typer.Option(help="Parked.", min=2)] = 64,
    ring_bytes: Annotated[int, typer.Option("--ring", help="Bytes of the ring.")] = 32 << 20,
    turns: Annotated[int, typer.Option(help="Of the fake engine.", min=20)] = 1_000,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    template: Annotated[
        Path | None, typer.Option(help="A chat template instead of the models'.", exists=True)
    ] = None,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Memory and disk: idle, for each session, for the ring, and over a thousand turns."""
    plan = Plan(sessions, parked, ring_bytes, turns, threads, template=template)
    if quick:
        model, plan = "hybrid-tiny", Plan(2, 3, 1 << 20, 20, 1, 0.3, template)
    before = environment()
    found = {name_of(name): sizes(name, plan) for name in model.split(",")}
    grown = growth(plan.turns)
    document = results.document(
        SCRIPT,
        settings_of(plan),
        {
            "models": {name: summary(one) for name, one in found.items()},
            "growth": {name: asdict(one) for name, one in grown.items()},
        },
        goals(found, grown),
        before,
    )
    if out or not quick:
        draw(grown, out or results.RESULTS / f"{SCRIPT}.json")
    if not as_json:
        show(found, grown)
        results.show_goals(goals(found, grown))
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
