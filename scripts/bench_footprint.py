"""What a daemon costs that has nothing to do: memory, processor time and wake-ups of a minute.

With no sessions, with 24 in the context, and with 1,000 that are parked. Each is a daemon of its
own with the tiny hybrid model, whose weights are told apart from what sessiond keeps itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts import results
from scripts.bench import AsJson, Out, Quick, model_path, run, words, workplace
from scripts.daemon import Daemon
from scripts.results import Goal, environment, number, progress
from sessiond.cli.output import Column
from sessiond.sessions.calm import CALM_S

MODEL = "hybrid-tiny"
RESIDENT, PARKED, IDLE_S = 24, 1_000, 60.0
WORDS = 200
MARGIN_S = 5.0
"""Beside `CALM_S`, until everything is written and the daemon rests."""
CPU_S, WAKES = 0.06, 60
"""Of a minute: a thousandth of one processor, and one wake-up a second."""
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: all that is resident, its fair share, and what is the process's own and no file's."""

    rss: int
    pss: int
    anonymous: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of an idle time of `seconds`: processor seconds, and how often any thread woke up."""

    sessions: int
    resident: int
    memory: Memory
    seconds: float
    cpu: float
    wakes: int
    ring: int
    disk: int


def memory_of(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in map(_parted, lines)}
    return Memory(fields["Rss"], fields["Pss"], fields["Anonymous"])


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def cpu_of(pid: int) -> float:
    """Seconds of all threads there are, to the nanosecond."""
    return sum(int(text.split()[0]) for text in _of_threads(pid, "schedstat")) / 1e9


def wakes_of(pid: int) -> int:
    """How often its threads went to sleep by themselves, and so woke up again."""
    lines = (line for text in _of_threads(pid, "status") for line in text.splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _of_threads(pid: int, name: str) -> list[str]:
    return [file.read_text() for file in Path(f"/proc/{pid}/task").glob(f"*/{name}")]


def disk_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def idle(daemon: Daemon, seconds: float, rest: float) -> Footprint:
    """Waits until the daemon rests, and looks at it again after so many seconds."""
    health = daemon.http.get("/health").json()
    time.sleep(rest)
    pid = daemon.pid
    cpu, wakes, began = cpu_of(pid), wakes_of(pid), time.monotonic()
    time.sleep(seconds)
    return Footprint(
        sessions=health["sessions"],
        resident=health["resident_lines"],
        memory=memory_of(pid),
        seconds=time.monotonic() - began,
        cpu=cpu_of(pid) - cpu,
        wakes=wakes_of(pid) - wakes,
        ring=health["ring_bytes"],
        disk=disk_of(daemon.state),
    )


def talk(daemon: Daemon, session: str) -> None:
    messages = [{"role": "user", "content": words(WORDS, session).strip()}]
    daemon.chat(session, messages, **BODY)


def nothing(daemon: Daemon, count: int) -> None:
    pass


def resident(daemon: Daemon, count: int) -> None:
    for session in range(count):
        talk(daemon, f"resident {session}")


def parked(daemon: Daemon, count: int) -> None:
    """All of them are on disk, and in memory only as far as a start brings them there."""
    for session in range(count):
        talk(daemon, f"parked {session}")
        daemon.park(f"parked {session}")
    again(daemon)


def again(daemon: Daemon) -> None:
    """Its sessions are on disk then, and in memory only as far as a start brings them there."""
    daemon.stop()
    daemon.start()
    daemon.http.get("/v1/sessions").raise_for_status()


Make = Callable[[Daemon, int], None]


def measure(make: Make, count: int, seconds: float, rest: float, lines: int) -> Footprint:
    options = ("--sessions-max-active", str(lines), "--n-ctx", str(lines * 512))
    with (
        workplace() as folder,
        Daemon(model_path(MODEL), folder / "state", options) as daemon,
    ):
        make(daemon, count)
        return idle(daemon, seconds, rest)


def per_session(found: dict[str, Footprint]) -> dict[str, float]:
    """Bytes of each parked session, in memory and on disk."""
    empty, full = found["no sessions"], found["parked"]
    count = max(full.sessions, 1)
    return {
        "memory": max(0.0, (full.memory.anonymous - empty.memory.anonymous) / count),
        "disk": (full.disk - empty.disk) / count,
    }


def goals(found: dict[str, Footprint]) -> list[Goal]:
    busy = found["resident"]
    minute = 60 / busy.seconds
    return [
        Goal("CPU of an idle minute, 24 sessions, s", busy.cpu * minute, CPU_S, at_least=False),
        Goal("wake-ups of an idle minute, 24 sessions", busy.wakes * minute, WAKES, at_least=False),
    ]


def show(found: dict[str, Footprint]) -> None:
    titles = ("SESSIONS", "IN CONTEXT", "RSS MB", "PSS MB", "OWN MB", "CPU MS", "WAKE-UPS")
    columns = (Column("IDLE"), *(Column(title, right=True) for title in titles))
    rows = [
        (
            name,
            one.sessions,
            one.resident,
            one.memory.rss / _MB,
            one.memory.pss / _MB,
            one.memory.anonymous / _MB,
            one.cpu * 1e3,
            one.wakes,
        )
        for name, one in found.items()
    ]
    results.show(f"An idle daemon, over {found['no sessions'].seconds:.0f} s", columns, rows)
    each = per_session(found)
    print(
        f"\nA parked session of {WORDS} words: {number(each['memory'] / 1e3)} kB of memory,"
        f" {number(each['disk'] / 1e3)} kB of disk"
    )


def main(
    sessions: Annotated[int, typer.Option(help="In the context.", min=1)] = RESIDENT,
    parked_sessions: Annotated[int, typer.Option(help="Parked.", min=1)] = PARKED,
    seconds: Annotated[float, typer.Option(help="Of idle time that is looked at.")] = IDLE_S,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Memory, processor time and wake-ups of an idle daemon."""
    rest = CALM_S + MARGIN_S
    if quick:
        sessions, parked_sessions, seconds, rest = 2, 3, 0.5, 0.0
    before = environment()
    wanted: dict[str, tuple[Make, int]] = {
        "no sessions": (nothing, 0),
        "resident": (resident, sessions),
        "parked": (parked, parked_sessions),
    }
    found: dict[str, Footprint] = {}
    for name, (make, count) in wanted.items():
        progress(f"{name}: {count}")
        found[name] = measure(make, count, seconds, rest, sessions)
    document = results.document(
        "footprint",
        {"model": MODEL, "sessions": sessions, "parked": parked_sessions, "words": WORDS},
        {**{name: asdict(one) for name, one in found.items()}, "per_parked": per_session(found)},
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
