"""What many sessions and blocks cost: start-up, `list`, planning a turn, and memory.

No model: the engine is the fake one, with nothing in its context. The ledger and the index are
synthetic and of real size, the state files are not. Each size is looked at by a new process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import psutil
import typer

from scripts import growth_world, results
from scripts.bench import AsJson, Out, Quick, run, workplace
from scripts.daemon import free_port
from scripts.growth_daemon import World, open_store
from scripts.growth_world import Size, fill, line_of, record_of
from scripts.results import Goal, Spread, environment, number, progress, spread
from sessiond.api.app import create_app
from sessiond.api.listening import listen_tcp
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.cli.output import Column
from sessiond.engine.memory import Tokens
from sessiond.sessions.lander import Machine
from sessiond.sessions.lifecycle import Lifecycle
from sessiond.sessions.plan import plan
from sessiond.store.chain import BLOCK_TOKENS

WITHIN_S = 1.0
QUICK = (Size(20, 200), Size(200, 2_000))
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds, and MiB of resident memory: before anything was opened, and what came on top.

    `store_open` is after a stop, `store_after_kill` after a crash. `list` is asked of the daemon's
    inside, `command` is all of `sessiond list`, `as_json` all of `sessiond list --json`; `…_cpu` is
    the processor time of both ends, which says more where others use the machine. `delete` removes
    a session used long ago, `put` stores the first block of a new session, which has a sibling for
    each old one. `append` plans a turn of an old session, `begin` one of a new session with the
    same front, `strange` one of a session that shares nothing. Of the newest session's `tokens`,
    `found` have blocks.
    """

    sessions: int
    blocks: int
    ledger_open: float
    store_open: float
    store_after_kill: float
    first_list: float
    second_list: float
    list_after_change: float
    command: float
    command_cpu: float
    as_json: float
    as_json_cpu: float
    put: float
    delete: float
    append: Spread
    begin: Spread
    strange: Spread
    memory_before: float
    memory_open: float
    memory_listed: float
    listed: int
    tokens: int
    found: int

    @property
    def start_up(self) -> float:
        return self.ledger_open + self.store_open

    @property
    def after_kill(self) -> float:
        return self.ledger_open + self.store_after_kill


def measure(folder: Path, size: Size, rounds: int) -> Costs:
    return asyncio.run(_measure(folder, size, rounds))


async def _measure(folder: Path, size: Size, rounds: int) -> Costs:
    memory = [_resident_mib()]
    store, after_kill = _timed(lambda: open_store(folder))
    store.close()
    del store
    world = World(folder)
    await world.start()
    memory.append(_resident_mib())
    listed, first_list = await _timed_await(world.lifecycle.summaries)
    _, second = await _timed_await(world.lifecycle.summaries)
    memory.append(_resident_mib())
    line, newest = line_of(size, size.sessions - 1), record_of(size.sessions - 1)
    changed = [*range(7)]
    world.machine.store.put_block(np.asarray(changed, np.int32), 0, b"one")
    _, third = await _timed_await(world.lifecycle.summaries)
    command, command_cpu = await _command(world.lifecycle, newest.name)
    as_json, as_json_cpu = await _command(world.lifecycle, newest.name, "--json")
    prompts = {
        "append": np.append(line, np.arange(20, dtype=np.int32)),
        "begin": np.append(line[: growth_world.FRONT_TOKENS], np.arange(600, dtype=np.int32)),
        "strange": np.arange(len(line), dtype=np.int32),
    }
    planned = {name: _planning(world.machine, prompt, rounds) for name, prompt in prompts.items()}
    found = world.machine.store.lookup(line).tokens
    first = prompts["begin"][: -(-growth_world.FRONT_TOKENS // BLOCK_TOKENS) * BLOCK_TOKENS]
    place = len(first) - BLOCK_TOKENS
    _, put = _timed(lambda: world.machine.store.put_block(first, place, b"one"))
    _, delete = await _timed_await(lambda: world.lifecycle.delete(record_of(0).name))
    await world.lifecycle.stop()
    return Costs(
        sessions=size.sessions,
        blocks=size.blocks,
        ledger_open=world.ledger_open,
        store_open=world.store_open,
        store_after_kill=after_kill,
        first_list=first_list,
        second_list=second,
        list_after_change=third,
        command=command,
        command_cpu=command_cpu,
        as_json=as_json,
        as_json_cpu=as_json_cpu,
        put=put,
        delete=delete,
        memory_before=memory[0],
        memory_open=memory[1] - memory[0],
        memory_listed=memory[2] - memory[0],
        listed=len(listed),
        tokens=len(line),
        found=found,
        **planned,
    )


def _planning(machine: Machine, prompt: Tokens, rounds: int) -> Spread:
    """A look at the index and the plan, as before a turn."""

    def once() -> None:
        stored = machine.store.lookup(prompt)
        plan(prompt, len(prompt) - 1, [], stored, machine.memory)

    return spread(_timed(once)[1] for _ in range(rounds))


async def _command(lifecycle: Lifecycle, newest: str, *options: str) -> tuple[float, float]:
    """Milliseconds of `sessiond list` as a process of its own, and of both processors' time."""
    async with _served(lifecycle) as port:
        before, began = _processor_ms(), time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sessiond", "list", "--url", f"http://127.0.0.1:{port}"),
            *options,
            stdout=asyncio.subprocess.PIPE,
        )
        shown, _ = await process.communicate()
        taken, cpu = (time.perf_counter() - began) * 1e3, _processor_ms() - before
    if newest not in shown.decode():
        raise SystemExit("`sessiond list` did not show the newest session")
    return taken, cpu


def _processor_ms() -> float:
    """Of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) * 1e3


@asynccontextmanager
async def _served(lifecycle: Lifecycle) -> AsyncGenerator[int, None]:
    stop, port = asyncio.Event(), free_port()

    async def nothing() -> None:
        return None

    app = create_app(lifecycle, ApiConfig())
    served = run_server(app, listen_tcp("127.0.0.1", port), on_stop=nothing, stop=stop)
    server = asyncio.create_task(served)
    try:
        yield port
    finally:
        stop.set()
        await server


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the milliseconds it took."""
    began = time.perf_counter()
    done = work()
    return done, (time.perf_counter() - began) * 1e3


async def _timed_await(work: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    began = time.perf_counter()
    done = await work()
    return done, (time.perf_counter() - began) * 1e3


def _resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def show(costs: list[Costs]) -> None:
    starts = [(c.ledger_open, c.store_open, c.store_after_kill) for c in costs]
    _table("Start-up, ms", "LEDGER STORE KILLED", costs, starts)
    inside = [(c.first_list, c.second_list, c.list_after_change) for c in costs]
    _table("The list, inside of the daemon, ms", "FIRST AGAIN CHANGED", costs, inside)
    lists = [(c.command, c.command_cpu, c.as_json, c.as_json_cpu) for c in costs]
    _table("sessiond list, all of it, ms", "TABLE CPU JSON CPU", costs, lists)
    turns = [(c.append.median, c.begin.median, c.strange.median, c.put, c.delete) for c in costs]
    _table(
        "Planning of a turn, and what else goes with one, ms",
        "APPEND BEGIN STRANGE PUT DELETE",
        costs,
        turns,
    )
    memory = [(c.memory_before, c.memory_open, c.memory_listed) for c in costs]
    _table("Resident memory, MiB, and what came on top", "BEFORE OPEN LISTED", costs, memory)


def _table(
    title: str, heads: str, costs: Sequence[Costs], values: Sequence[tuple[float, ...]]
) -> None:
    columns = [Column(head, right=True) for head in ("SESSIONS", "BLOCKS", *heads.split())]
    sizes = [(number(c.sessions), number(c.blocks)) for c in costs]
    rows = [(*size, *found) for size, found in zip(sizes, values, strict=True)]
    results.show(title, columns, rows)


def main(
    sessions: Annotated[int, typer.Option(help="In the ledger.", min=20)] = 10_000,
    blocks: Annotated[int, typer.Option(help="In the index.", min=200)] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Plans of each kind.", min=1)] = 5,
    quick: Quick = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What 10,000 sessions and 1,000,000 blocks cost, next to a tenth of them."""
    before = environment()
    sizes = QUICK if quick else (Size(sessions // 10, blocks // 10), Size(sessions, blocks))
    costs: list[Costs] = []
    for size in sizes:
        progress(f"writing {size.sessions:,} sessions and {size.blocks:,} blocks")
        with workplace() as folder:
            fill(folder, size)
            progress("opening, listing, planning")
            costs.append(_apart(folder, size, 1 if quick else rounds))
    full = costs[-1]
    goals = [
        Goal("start-up without the model, s", full.start_up / 1e3, WITHIN_S, at_least=False),
        Goal("start-up after a kill, s", full.after_kill / 1e3, WITHIN_S, at_least=False),
        Goal("first list, s", full.first_list / 1e3, WITHIN_S, at_least=False),
        Goal("list after a change, s", full.list_after_change / 1e3, WITHIN_S, at_least=False),
        Goal("sessiond list, all of it, s", full.command / 1e3, WITHIN_S, at_least=False),
        Goal("sessiond list --json, s", full.as_json / 1e3, WITHIN_S, at_least=False),
    ]
    settings = {"sizes": [asdict(size) for size in sizes], "tokens": sizes[-1].tokens}
    found = {str(cost.sessions): asdict(cost) for cost in costs}
    document = results.document("bench_growth", settings, found, goals, before)
    if not as_json:
        show(costs)
        results.show_goals(goals)
        results.show_environment(before)
    results.finish(document, as_json=as_json, keep=not quick, out=out)


def _apart(folder: Path, size: Size, rounds: int) -> Costs:
    """Measured in a new process, whose memory holds nothing of the writing."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, folder, size, rounds).result()


if __name__ == "__main__":
    run(main)
