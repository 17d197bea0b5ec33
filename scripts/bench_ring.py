"""How many tokens going back costs when the ring holds only a part of the snapshots.

Eight sessions talk in turns, two lines fit in the model's memory, and the ring gets all that the
conversations would fill, a half of it, a quarter and so on. Then every session goes on, and back to
earlier turns by asking the same again. What was found nowhere is evaluated. Snapshots also go to
disk, and those found there count in no budget: the landings tell where from.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

import typer
from prometheus_client.parser import text_string_to_metric_families

from scripts import results
from scripts.bench import AsJson, Out, Quick, model_path, run, words, workplace
from scripts.daemon import Answer, Daemon, DaemonFailed, Json
from scripts.results import Goal, Spread, environment, number, progress, spread
from sessiond.cli.output import Column

MODEL = "hybrid-tiny"
PARTS = (1, 2, 4, 8, 16)
"""The budgets: one of so many parts of what all snapshots take."""
PLENTY = 2 << 30
NEW_WORDS, REPLY = 16, 8
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": REPLY, "ignore_eos": True}
STEPS = 8
STEEPEST = 0.5
"""Half the budget makes going back dearer by at most so much of the prompt."""
SOURCES = ("resident", "ring", "disk", "nothing")
_WIDTH = 60
_SETTLED_S = 0.5
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Asked:
    """Tokens of one request: all of its prompt, and those that were evaluated."""

    turn: int
    prompt: int
    evaluated: int


@dataclass(frozen=True, slots=True)
class Level:
    """One run with a ring of `budget` bytes, of which `part` says the share: one of so many.

    `highest` are the most bytes it had; `full` and `entries` what it had when the talks ended.
    Landings are counted from there on.
    """

    part: int
    budget: int
    highest: int
    full: int
    entries: int
    appends: tuple[Asked, ...]
    returns: tuple[Asked, ...]
    landings: dict[str, int]

    @property
    def evaluated(self) -> Spread:
        return spread(each.evaluated for each in self.returns)

    @property
    def mean(self) -> float:
        return sum(each.evaluated for each in self.returns) / len(self.returns)

    @property
    def of_prompt(self) -> float:
        """Tokens evaluated of those of the prompts, on returns."""
        return sum(e.evaluated for e in self.returns) / sum(e.prompt for e in self.returns)


class Talks:
    """So many conversations with one daemon, which is looked at after every turn."""

    def __init__(self, daemon: Daemon, sessions: int) -> None:
        self._daemon = daemon
        self._lines: list[list[Json]] = [[] for _ in range(sessions)]
        self.highest = 0

    def all_turn(self, turn: int) -> list[Asked]:
        """Turn `turn`, from 1, of every conversation."""
        return [self._turn(session, turn) for session in range(len(self._lines))]

    def all_return(self, turn: int) -> list[Asked]:
        """Every conversation asks again what it asked at `turn`."""
        return [self._again(session, turn) for session in range(len(self._lines))]

    def _turn(self, session: int, turn: int) -> Asked:
        line = self._lines[session]
        asked = words(NEW_WORDS, f"session {session} turn {turn}").strip()
        line.append({"role": "user", "content": asked})
        answer = self._daemon.chat(f"bench-{session}", line, **BODY)
        line.append({"role": "assistant", "content": answer.text})
        return self._looked(turn, answer)

    def _again(self, session: int, turn: int) -> Asked:
        messages = self._lines[session][: 2 * turn - 1]
        fields = {**BODY, "max_tokens": 1}
        return self._looked(turn, self._daemon.chat(f"bench-{session}", messages, **fields))

    def _looked(self, turn: int, answer: Answer) -> Asked:
        now = ring(self._daemon)
        self.highest = max(self.highest, now["ring_bytes"])
        return Asked(turn, answer.prompt_tokens, answer.evaluated)


def ring(daemon: Daemon) -> Json:
    """The daemon's health. Raises DaemonFailed when the ring is over its budget."""
    now: Json = daemon.http.get("/health").raise_for_status().json()
    if now["ring_bytes"] > now["ring_budget"]:
        raise DaemonFailed(f"The ring has {now['ring_bytes']} of {now['ring_budget']} bytes.")
    return now


def settled(daemon: Daemon) -> Json:
    """The health when nothing has come into the ring for a while."""
    now, since = ring(daemon), time.monotonic()
    while time.monotonic() - since < _SETTLED_S:
        time.sleep(_POLL_S)
        later = ring(daemon)
        if later["ring_bytes"] != now["ring_bytes"]:
            now, since = later, time.monotonic()
    return now


def landings(daemon: Daemon) -> dict[str, int]:
    """Turns since the daemon started, by the state their evaluation began on."""
    answer = daemon.http.get("/metrics").raise_for_status()
    found = dict.fromkeys(SOURCES, 0)
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name == "sessiond_landings_total":
                found[sample.labels["source"]] = int(sample.value)
    return found


def returns(turns: int) -> list[int]:
    """The turns to go back to: 5, 10, and so on of forty, and the last but one.

    The latest comes first: what one return captures is then behind the next one, and no help to it.
    """
    step = max(1, turns // STEPS)
    return sorted({*range(step, turns, step), turns - 1}, reverse=True)


def measure(part: int, budget: int, sessions: int, turns: int, threads: int) -> Level:
    progress(f"1/{part}: a ring of {budget:,} bytes, {sessions} sessions x {turns} turns")
    options = ["--checkpoints-ram", str(budget), "--max-active", "2"]
    options += ["--model-threads", str(threads)]
    with (
        workplace() as folder,
        Daemon(model_path(MODEL), folder / "state", options) as daemon,
    ):
        talks = Talks(daemon, sessions)
        for turn in range(1, turns + 1):
            talks.all_turn(turn)
        full, before = settled(daemon), landings(daemon)
        appends = talks.all_turn(turns + 1)
        again = [asked for turn in returns(turns) for asked in talks.all_return(turn)]
        after = landings(daemon)
        return Level(
            part=part,
            budget=budget,
            highest=talks.highest,
            full=full["ring_bytes"],
            entries=full["ring_entries"],
            appends=tuple(appends),
            returns=tuple(again),
            landings={source: after[source] - before[source] for source in after},
        )


def curve(parts: Sequence[int], sessions: int, turns: int, threads: int) -> list[Level]:
    """The first run has memory in plenty, and what it takes of it is what the others share."""
    first = measure(1, PLENTY, sessions, turns, threads)
    later = parts[1:]
    return [first, *(measure(n, first.full // n, sessions, turns, threads) for n in later)]


def goals(levels: Sequence[Level]) -> list[Goal]:
    rises = [b.of_prompt - a.of_prompt for a, b in pairwise(levels)]
    return [
        Goal(
            "ring bytes / budget at the fullest",
            max(level.highest / level.budget for level in levels),
            1.0,
            at_least=False,
        ),
        Goal(
            "steepest rise, of the prompt, when the budget is halved",
            max(rises, default=0.0),
            STEEPEST,
            at_least=False,
        ),
    ]


def summary(level: Level) -> Json:
    return {
        **asdict(level),
        "returns_mean": level.mean,
        "returns_worst": level.evaluated.high,
        "returns_of_prompt": level.of_prompt,
    }


def show(levels: Sequence[Level]) -> None:
    right = ("MB", "SNAPSHOTS", "GO ON", "MEAN", "MEDIAN", "WORST", "OF PROMPT %", *SOURCES)
    columns = (Column("RING"), *(Column(title.upper(), right=True) for title in right))
    rows = [
        (
            _label(level),
            level.full / 1e6,
            level.entries,
            sum(each.evaluated for each in level.appends) / len(level.appends),
            level.mean,
            level.evaluated.median,
            int(level.evaluated.high),
            100 * level.of_prompt,
            *(level.landings[source] for source in SOURCES),
        )
        for level in levels
    ]
    results.show("Tokens evaluated when going on and when going back; landings", columns, rows)
    print("\n".join(["", "Tokens evaluated on going back: # mean, - worst", "", *plot(levels)]))


def plot(levels: Sequence[Level]) -> list[str]:
    """One line for each budget; the width is the longest prompt."""
    longest = max(each.prompt for level in levels for each in level.returns)
    lines = []
    for level in levels:
        mean, worst = (
            round(_WIDTH * value / longest) for value in (level.mean, level.evaluated.high)
        )
        bar = ("#" * mean).ljust(worst, "-")
        told = f"{number(level.mean)} / {level.evaluated.high:,.0f}"
        lines.append(f"{_label(level):>5} |{bar:<{_WIDTH}}| {told}")
    return [*lines, f"{'':5} 0{longest:>{_WIDTH},} = the longest prompt"]


def _label(level: Level) -> str:
    return "all" if level.part == 1 else f"1/{level.part}"


def main(
    sessions: Annotated[int, typer.Option(help="Conversations.", min=1)] = 8,
    turns: Annotated[int, typer.Option(help="Turns of each.", min=2)] = 40,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Tokens that going back costs, against the memory that the ring may have."""
    parts: tuple[int, ...] = PARTS
    if quick:
        parts, sessions, turns, threads = (1, 4), 3, 4, 1
    before = environment()
    levels = curve(parts, sessions, turns, threads)
    document = results.document(
        "bench_ring",
        {
            "model": MODEL,
            "sessions": sessions,
            "turns": turns,
            "returns": returns(turns),
            "lines_in_memory": 2,
            "reply_tokens": REPLY,
        },
        {_label(level): summary(level) for level in levels},
        goals(levels),
        before,
    )
    if not as_json:
        show(levels)
        results.show_goals(goals(levels))
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
