"""What one turn more costs the disk, over forty turns of one session.

After each turn the daemon is left alone until it has saved everything, which is the most it can
write: turns in quick succession save once. Every turn adds about as many tokens as the one before,
so what a turn writes should not grow with the length of the session.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts import results
from scripts.bench import AsJson, Out, Quick, model_path, run, words, workplace
from scripts.daemon import Daemon, Json
from scripts.results import Goal, environment, number, progress, sparkline
from sessiond.cli.output import Column

SESSION = "bench"
FLAT = 1.25
"""The last turns write at most so many times what the first ones wrote."""
EDGE = 10
NEW_WORDS = 24
REPLY = 16
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": REPLY, "ignore_eos": True}
QUIET_S = 0.7
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes since the daemon started; `ledger` is the size of its files, the log included.

    `device` is what the kernel counts for the process: state, ledger and index together.
    """

    store: int
    ledger: int
    device: int


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes of one turn. `prompt` and `new` are tokens: all of the line, and what was added."""

    prompt: int
    new: int
    store: int
    ledger: int
    device: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one series of bytes per turn, without the first turn."""

    median: float
    first: float
    last: float
    slope: float

    @property
    def ratio(self) -> float:
        """Mean of the last turns over mean of the first ones."""
        return self.last / self.first if self.first else 1.0


def growth(series: Sequence[float]) -> Growth:
    later = series[1:]
    edge = min(EDGE, max(1, len(later) // 2))
    slope = statistics.linear_regression(range(len(later)), later).slope
    return Growth(
        median=statistics.median(later),
        first=statistics.fmean(later[:edge]),
        last=statistics.fmean(later[-edge:]),
        slope=slope,
    )


class Talk:
    """A conversation whose turns are all alike."""

    def __init__(self, daemon: Daemon, *, park: bool) -> None:
        self._daemon = daemon
        self._park = park
        self._messages: list[Json] = []
        self._tokens = 0

    def turn(self) -> Written:
        before = self._counters()
        asked = words(NEW_WORDS, f"turn {len(self._messages)}").strip()
        self._messages.append({"role": "user", "content": asked})
        answer = self._daemon.chat(SESSION, self._messages, **BODY)
        self._messages.append({"role": "assistant", "content": answer.text})
        self._saved(before)
        after = self._counters()
        total, known = answer.prompt_tokens + REPLY, self._tokens
        self._tokens = total
        return Written(
            prompt=answer.prompt_tokens,
            new=total - known,
            store=after.store - before.store,
            ledger=after.ledger - before.ledger,
            device=after.device - before.device,
        )

    def _saved(self, before: Counters) -> None:
        if self._park:
            self._daemon.park(SESSION)
        else:
            self._daemon.wait_until_saved(QUIET_S, more_than=before.store)

    def _counters(self) -> Counters:
        daemon = self._daemon
        return Counters(
            store=int(daemon.metric("sessiond_save_bytes_total")),
            ledger=sum(path.stat().st_size for path in daemon.state.glob("ledger.sqlite*")),
            device=_device_bytes(daemon.pid),
        )


def _device_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    fields = dict(line.split(": ") for line in lines)
    return int(fields["write_bytes"])


def measure(
    names: Sequence[str], turns: int, *, park: bool, threads: int
) -> dict[str, list[Written]]:
    found: dict[str, list[Written]] = {}
    for name in names:
        progress(f"{name}: {turns} turns")
        model, options = model_path(name), ("--model-threads", str(threads))
        with workplace() as folder, Daemon(model, folder / "state", options) as daemon:
            talk = Talk(daemon, park=park)
            found[name] = [talk.turn() for _ in range(turns)]
    return found


def growths(turns: Sequence[Written]) -> dict[str, Growth]:
    return {
        kind: growth([getattr(turn, kind) for turn in turns])
        for kind in ("store", "ledger", "device")
    }


def goals(found: dict[str, list[Written]]) -> list[Goal]:
    return [
        Goal(
            f"{name}: last turns / first turns, state files",
            growths(turns)["store"].ratio,
            FLAT,
            False,
        )
        for name, turns in found.items()
    ]


def show(found: dict[str, list[Written]]) -> None:
    right = ("MEDIAN MB", "FIRST MB", "LAST MB", "LAST / FIRST", "SLOPE MB PER TURN")
    columns = (Column("BYTES PER TURN"), *(Column(title, right=True) for title in right))
    labels = {"store": "state files", "ledger": "ledger files", "device": "all, to the device"}
    for name, turns in found.items():
        rows = [
            (
                labels[kind],
                each.median / _MB,
                each.first / _MB,
                each.last / _MB,
                each.ratio,
                each.slope / _MB,
            )
            for kind, each in growths(turns).items()
        ]
        results.show(
            f"{name}: {len(turns)} turns, {turns[-1].prompt:,} tokens at the end", columns, rows
        )
        print(f"\nstate files, turn by turn  {sparkline([turn.store for turn in turns])}")
        print(
            f"of these the first: {number(turns[0].store / _MB)} MB; {turns[-1].new} tokens a turn"
        )


def main(
    models: Annotated[
        str, typer.Option(help="Names, with commas.")
    ] = "smollm2,hybrid-tiny,mamba2-tiny",
    turns: Annotated[int, typer.Option(help="Turns of each session.", min=4)] = 40,
    threads: Annotated[int, typer.Option(help="0: the physical cores.")] = 0,
    park: Annotated[
        bool, typer.Option("--park", help="Park after each turn instead of waiting.")
    ] = False,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Bytes written per turn over forty turns: state files, ledger, and all of the process."""
    if quick:
        models, turns, threads, park = "hybrid-tiny,mamba2-tiny", 6, 1, True
    before = environment()
    found = measure(models.split(","), turns, park=park, threads=threads)
    document = results.document(
        "bench_writes",
        {"turns": turns, "saved_by": "park" if park else "idle", "reply_tokens": REPLY},
        {
            name: {
                "turns": [asdict(turn) for turn in found[name]],
                "growth": {kind: asdict(each) for kind, each in growths(found[name]).items()},
            }
            for name in found
        },
        goals(found),
        before,
    )
    if not as_json:
        show(found)
        results.show_goals(goals(found))
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


if __name__ == "__main__":
    run(main)
