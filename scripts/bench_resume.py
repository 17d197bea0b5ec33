"""What a restart costs: a cold prompt, a warm turn and a turn from disk, side by side in one run.

The daemon is killed with SIGKILL, so all of its memory is gone; the files stay in the page cache,
as they do when a service is restarted. The turn of one token sends back the reply and says nothing
more: the reply's last token is all there is to evaluate. The other turn says 20 tokens more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts import results
from scripts.bench import (
    MODELS_HELP,
    AsJson,
    Out,
    Quick,
    model_path,
    name_of,
    run,
    words,
    workplace,
)
from scripts.daemon import Answer, Daemon, Json, state_files
from scripts.results import Goal, Spread, environment, progress, spread
from sessiond.cli.output import Column

SESSION = "bench"
NEW = 20
RATIO_AT = 4096
COLD_OVER_RESUMED, OF_WARM, OF_PLAIN = 100.0, 1.3, 0.5
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of one kind. Times in ms; tokens and bytes are those of each single turn."""

    ttft_ms: Spread
    daemon_ttft_ms: Spread
    restore_ms: Spread
    evaluated: int
    restored: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Length:
    """All that was measured at one prompt length. `plain_ms` reads and copies the same files.

    `tuned_ms` does so with one buffer that is used again, see `plain_copy`.
    """

    tokens: int
    cold: Turns
    warm_one: Turns
    warm_more: Turns
    resumed_one: Turns
    resumed_more: Turns
    plain_ms: Spread
    tuned_ms: Spread
    plain_bytes: int
    start_s: Spread

    @property
    def cold_over_resumed(self) -> float:
        return self.cold.ttft_ms.median / self.resumed_one.ttft_ms.median

    @property
    def resumed_over_warm(self) -> float:
        """Of the turn with more tokens, without the time that a plain read and copy takes."""
        resumed = self.resumed_more.ttft_ms.median - self.plain_ms.median
        return resumed / self.warm_more.ttft_ms.median

    @property
    def restored_over_plain(self) -> float:
        """Bytes per ms of a restore, of those of a plain read and copy."""
        return self._restored_rate / (self.plain_bytes / self.plain_ms.median)

    @property
    def restored_over_tuned(self) -> float:
        return self._restored_rate / (self.plain_bytes / self.tuned_ms.median)

    @property
    def _restored_rate(self) -> float:
        return self.resumed_one.read_bytes / self.resumed_one.restore_ms.median


@dataclass(frozen=True, slots=True)
class Measured:
    answer: Answer
    read_bytes: int


class Line:
    """One session of one model: cold, resumed again and again, then warm."""

    def __init__(self, daemon: Daemon, tokens: int, rounds: int) -> None:
        self._daemon = daemon
        self._rounds = rounds
        self._prompt = words(tokens, f"cold {tokens}")
        self._tokens = tokens
        self._starts: list[float] = []
        self._plain: list[Json] = []

    def measure(self) -> Length:
        daemon = self._daemon
        self._starts.append(daemon.start())
        cold = self._say(self._prompt)
        said = self._prompt + cold.answer.text
        daemon.wait_until_saved()
        once = [self._resumed(said) for _ in range(self._rounds)]
        more = [self._resumed(said + words(NEW, f"turn {n}")) for n in range(self._rounds)]
        self._restart()
        warm_once = self._grown(said, "one", 0)
        warm_more = self._grown(said, "more", NEW)
        daemon.kill()
        return Length(
            tokens=self._tokens,
            cold=_turns([cold]),
            warm_one=_turns(warm_once),
            warm_more=_turns(warm_more),
            resumed_one=_turns(once),
            resumed_more=_turns(more),
            plain_ms=spread(copy["plain_ms"] for copy in self._plain),
            tuned_ms=spread(copy["tuned_ms"] for copy in self._plain),
            plain_bytes=self._plain[0]["bytes"],
            start_s=spread(self._starts),
        )

    def _grown(self, said: str, kind: str, new: int) -> list[Measured]:
        """One turn after the other in the context, each with `new` tokens after the last reply."""
        said += words(NEW, kind)
        turns = [self._say(said)]
        for n in range(2 * self._rounds):
            said += turns[-1].answer.text + words(new, f"{kind} {n}")
            turns.append(self._say(said))
        return turns[1:]

    def _resumed(self, said: str) -> Measured:
        self._restart()
        return self._say(said)

    def _restart(self) -> None:
        """All memory of the daemon is dropped. Files are timed while nothing runs."""
        self._daemon.kill()
        self._plain.append(plain_copy(restored_files(self._daemon.state)))
        self._starts.append(self._daemon.start())

    def _say(self, text: str) -> Measured:
        before = self._read_bytes()
        answer = self._daemon.complete(SESSION, text, **BODY)
        return Measured(answer, self._read_bytes() - before)

    def _read_bytes(self) -> int:
        return int(self._daemon.metric("sessiond_restore_bytes_total"))


def restored_files(state: Path) -> list[Path]:
    """What a restore reads: every block, and one of the snapshots, which are of equal size."""
    files = state_files(state)
    snapshots = [path for path in files if path.parent.parent.name == "snapshots"]
    return [path for path in files if path not in snapshots[1:]]


def plain_copy(files: Sequence[Path]) -> Json:
    """What `scripts.plain_copy` says of these files."""
    command = [sys.executable, "-m", "scripts.plain_copy", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Json = json.loads(done.stdout)
    return found


def _turns(measured: Sequence[Measured]) -> Turns:
    answers = [each.answer for each in measured]
    evaluated = {answer.evaluated for answer in answers}
    if len(evaluated) > 1:
        progress(f"warning: turns of one kind evaluated different numbers: {sorted(evaluated)}")
    return Turns(
        ttft_ms=spread(answer.ttft_ms for answer in answers),
        daemon_ttft_ms=spread(answer.report["ttft_ms"] for answer in answers),
        restore_ms=spread(answer.report["restore_ms"] for answer in answers),
        evaluated=max(evaluated),
        restored=answers[0].report["restored_tokens"],
        read_bytes=measured[0].read_bytes,
    )


def measure(names: Sequence[str], lengths: Sequence[int], rounds: int) -> dict[str, list[Length]]:
    found: dict[str, list[Length]] = {}
    for name in names:
        told = found[name_of(name)] = []
        for tokens in lengths:
            progress(f"{name}: {tokens} tokens")
            with workplace() as folder:
                daemon = Daemon(model_path(name), folder / "state")
                try:
                    told.append(Line(daemon, tokens, rounds).measure())
                finally:
                    daemon.kill()
    return found


def goals(found: dict[str, list[Length]]) -> list[Goal]:
    asked: list[Goal] = []
    for name, lengths in found.items():
        for each in lengths:
            at = f"{name}, {each.tokens:,} tokens"
            if each.tokens == RATIO_AT:
                ratio = Goal(
                    f"{at}: cold / resumed, 1 token", each.cold_over_resumed, COLD_OVER_RESUMED
                )
                asked.append(ratio)
            asked += [
                Goal(
                    f"{at}: (resumed - plain read) / warm, {NEW} new",
                    each.resumed_over_warm,
                    OF_WARM,
                    False,
                ),
                Goal(
                    f"{at}: restore / plain copy, bytes per ms", each.restored_over_plain, OF_PLAIN
                ),
            ]
    return asked


def show(found: dict[str, list[Length]]) -> None:
    columns = (
        Column("TURN"),
        *(Column(title, right=True) for title in ("EVALUATED", "FIRST TOKEN ms", "DAEMON ms")),
        *(Column(title, right=True) for title in ("RESTORE ms", "READ MB")),
    )
    for name, lengths in found.items():
        for each in lengths:
            results.show(f"{name}, a prompt of {each.tokens:,} tokens", columns, _rows(each))
            _show_read(each)


def _rows(each: Length) -> list[tuple[object, ...]]:
    kinds = (
        ("cold", each.cold),
        ("warm, 1 token", each.warm_one),
        ("resumed, 1 token", each.resumed_one),
        (f"warm, {NEW} new", each.warm_more),
        (f"resumed, {NEW} new", each.resumed_more),
    )
    return [
        (
            kind,
            turns.evaluated,
            turns.ttft_ms,
            turns.daemon_ttft_ms,
            turns.restore_ms if turns.read_bytes else "",
            turns.read_bytes / 1e6 if turns.read_bytes else "",
        )
        for kind, turns in kinds
    ]


def _show_read(each: Length) -> None:
    restored = each.resumed_one
    pairs = (
        ("restored", restored.read_bytes, restored.restore_ms),
        ("read and copied by a plain program", each.plain_bytes, each.plain_ms),
        ("with a reused buffer", each.plain_bytes, each.tuned_ms),
    )
    rates = (f"{size / ms.median / 1e6:.1f} GB/s {what}" for what, size, ms in pairs)
    print(f"\n{', '.join(rates)}")
    print(f"ready {each.start_s.median:.1f} s after the start")


def main(
    models: Annotated[str, typer.Option(help=MODELS_HELP)] = "smollm2,hybrid-0.8b",
    lengths: Annotated[str, typer.Option(help="Tokens, with commas.")] = f"1024,{RATIO_AT},7500",
    rounds: Annotated[int, typer.Option(help="Restarts for each kind of turn.", min=1)] = 5,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Time to the first token: cold, warm, and from disk after the daemon was killed."""
    if quick:
        models, lengths, rounds = "smollm2,hybrid-tiny", "300,600", 2
    before = environment()
    sizes = [int(length) for length in lengths.split(",")]
    found = measure(models.split(","), sizes, rounds)
    document = results.document(
        "bench_resume",
        {"lengths": sizes, "rounds": rounds, "new_tokens": NEW, "page_cache": "warm"},
        {name: [asdict_with_ratios(each) for each in found[name]] for name in found},
        goals(found),
        before,
    )
    if not as_json:
        show(found)
        results.show_goals(goals(found))
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


def asdict_with_ratios(each: Length) -> dict[str, Any]:
    return {
        **asdict(each),
        "cold_over_resumed": each.cold_over_resumed,
        "resumed_over_warm": each.resumed_over_warm,
        "restored_over_plain": each.restored_over_plain,
        "restored_over_tuned": each.restored_over_tuned,
    }


if __name__ == "__main__":
    run(main)
