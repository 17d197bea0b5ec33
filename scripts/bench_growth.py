"""What many sessions and blocks cost: start-up, `list`, planning a turn, and memory.

No model: the engine is the fake one, with nothing in its context. The ledger and the index are
synthetic and of real size, the state files are not. Each size is looked at by a new process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
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
from scripts.growth_world import FINGERPRINT, Size, fill, line_of, record_of
from scripts.results import Goal, Spread, environment, number, progress, spread
from sessiond.api.app import create_app
from sessiond.api.listening import listen_tcp
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.chat.renderer import TemplateRenderer
from sessiond.cli.output import Column
from sessiond.engine.context import Context, Model
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.memory import Memory, MemoryKind, Tokens
from sessiond.engine.probe import Verdict
from sessiond.engine.thread import Engine
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.sessions.health import Loaded
from sessiond.sessions.lander import Machine
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.lifecycle import Lifecycle, Limits
from sessiond.sessions.plan import plan
from sessiond.sessions.rates import Rates
from sessiond.sessions.register import Register
from sessiond.sessions.residency import Residency
from sessiond.sessions.saver import Saver
from sessiond.store.ring import Ring
from sessiond.store.store import Store

WITHIN_S = 1.0
QUICK = (Size(20, 200), Size(200, 2_000))
_MEMORY = Memory(MemoryKind.ATTENTION)
_LINES = 16
_QUOTA = 1 << 50
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds, and MiB of resident memory: before anything was opened, and what came on top.

    `store_open` is after a stop, `store_after_kill` after a crash. `list` is asked of the daemon's
    inside, `command` is all of `sessiond list`. `append` plans a turn of an old session, `begin`
    one of a new session with the same front, `strange` one of a session that shares nothing. Of
    the newest session's `tokens`, `found` have blocks.
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


class World:
    """A daemon's lifecycle over a synthetic past; the store is opened when it is told to load."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.machine: Machine
        self.store_open = 0.0
        ledger, self.ledger_open = _timed(lambda: Ledger(folder / growth_world.LEDGER))
        self.lifecycle = Lifecycle(Register(ledger), self._load, Limits())

    async def start(self) -> None:
        began = time.perf_counter()
        await self.lifecycle.start()
        self.ledger_open += (time.perf_counter() - began) * 1e3
        await self.lifecycle.loaded()

    async def _load(self) -> Loaded:
        engine = Engine(_fake_engine)
        await engine.start()
        opened = await asyncio.to_thread(_timed, lambda: _open_store(self._folder))
        store, self.store_open = opened
        ring = Ring(0, FINGERPRINT.value)
        checkpoints = Checkpoints(engine, ring, store)
        saver = Saver(engine, store, checkpoints, _MEMORY, whole=False)
        self.machine = Machine(
            engine=engine,
            store=store,
            saver=saver,
            checkpoints=checkpoints,
            residency=Residency(engine, saver, checkpoints),
            memory=_MEMORY,
            fingerprint=FINGERPRINT,
            rates=Rates(),
            limit=engine.core.context.n_ctx,
        )
        renderer = TemplateRenderer(engine.model, None)
        verdict = Verdict("blocks", "", 0, 0, 0)
        n_ctx = engine.core.context.n_ctx
        return Loaded(self.machine, renderer, "tokenizer", "fake", n_ctx, n_ctx, verdict)


def _open_store(folder: Path) -> Store:
    return Store(
        folder / growth_world.CACHE,
        folder / growth_world.INDEX,
        fingerprint=FINGERPRINT.value,
        quota=_QUOTA,
        keep_free=0,
    )


def measure(folder: Path, size: Size, rounds: int) -> Costs:
    return asyncio.run(_measure(folder, size, rounds))


async def _measure(folder: Path, size: Size, rounds: int) -> Costs:
    memory = [_resident_mib()]
    store, after_kill = _timed(lambda: _open_store(folder))
    store.close()
    del store
    world = World(folder)
    await world.start()
    memory.append(_resident_mib())
    listed, first = await _timed_await(world.lifecycle.summaries)
    _, second = await _timed_await(world.lifecycle.summaries)
    memory.append(_resident_mib())
    line, newest = line_of(size, size.sessions - 1), record_of(size.sessions - 1)
    changed = [*range(7)]
    world.machine.store.put_block(np.asarray(changed, np.int32), 0, b"one")
    _, third = await _timed_await(world.lifecycle.summaries)
    command = await _command(world.lifecycle, newest.name)
    prompts = {
        "append": np.append(line, np.arange(20, dtype=np.int32)),
        "begin": np.append(line[: growth_world.FRONT_TOKENS], np.arange(600, dtype=np.int32)),
        "strange": np.arange(len(line), dtype=np.int32),
    }
    planned = {name: _planning(world.machine, prompt, rounds) for name, prompt in prompts.items()}
    found = world.machine.store.lookup(line).tokens
    await world.lifecycle.stop()
    return Costs(
        sessions=size.sessions,
        blocks=size.blocks,
        ledger_open=world.ledger_open,
        store_open=world.store_open,
        store_after_kill=after_kill,
        first_list=first,
        second_list=second,
        list_after_change=third,
        command=command,
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


async def _command(lifecycle: Lifecycle, newest: str) -> float:
    """Milliseconds of `sessiond list` as a process of its own."""
    async with _served(lifecycle) as port:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sessiond", "list", "--url", f"http://127.0.0.1:{port}"),
            stdout=asyncio.subprocess.PIPE,
        )
        shown, _ = await process.communicate()
        taken = (time.perf_counter() - began) * 1e3
    if newest not in shown.decode():
        raise SystemExit("`sessiond list` did not show the newest session")
    return taken


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


def _fake_engine() -> tuple[Model, Context]:
    model = FakeModel(_MEMORY)
    return model, FakeContext(model, n_ctx=1 << 17, n_seq_max=_LINES)


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
    ms = (
        "LEDGER",
        "STORE",
        "KILLED",
        "LIST",
        "AGAIN",
        "CHANGED",
        "COMMAND",
        "APPEND",
        "BEGIN",
        "STRANGE",
    )
    rows = [
        (
            number(c.sessions),
            number(c.blocks),
            *(
                c.ledger_open,
                c.store_open,
                c.store_after_kill,
                c.first_list,
                c.second_list,
                c.list_after_change,
            ),
            *(c.command, c.append.median, c.begin.median, c.strange.median),
        )
        for c in costs
    ]
    columns = [Column(title, right=True) for title in ("SESSIONS", "BLOCKS", *ms)]
    results.show("Start-up, list and planning of a turn, ms", columns, rows)
    columns = [Column(title, right=True) for title in ("SESSIONS", "BEFORE", "OPEN", "LISTED")]
    memory = [(number(c.sessions), c.memory_before, c.memory_open, c.memory_listed) for c in costs]
    results.show("Resident memory, MiB, and what came on top", columns, memory)


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
