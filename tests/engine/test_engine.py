"""One thread owns the context; the event loop talks to it and never waits for it in vain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sessiond.engine.context import Context, Model
from sessiond.engine.core import SPARES, EngineCore
from sessiond.engine.events import Delta, Ended, Progress, Starved
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.landing import Landing
from sessiond.engine.memory import Memory
from sessiond.engine.thread import Engine, RunHandle
from sessiond.errors import ConfigError, DecodeFailed, EngineError, RestoreRefused
from tests.engine.cores import ATTENTION, HYBRID, prompt, run_of

PATIENCE = 20.0


class WatchedContext:
    """Every call must come from one thread; decode number `pause_at` waits for `resume`."""

    def __init__(self, context: FakeContext) -> None:
        self.fake = context
        self.threads: set[int] = set()
        self.calls: list[str] = []
        self.failures: dict[int, Exception] = {}
        self.decodes = 0
        self.pause_at = 0
        self.reached, self.resume = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.fake, name)
        return self._watched(name, value) if callable(value) else value

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.threads.add(threading.get_ident())
            self.calls.append(name)
            if name in ("decode", "decode_rows"):
                self._before_decode()
            return method(*arguments, **named)

        return call

    def _before_decode(self) -> None:
        self.decodes += 1
        if self.decodes == self.pause_at:
            self.reached.set()
            assert self.resume.wait(PATIENCE)
        if self.decodes in self.failures:
            raise self.failures[self.decodes]


class Bed:
    """A running engine on a watched fake."""

    def __init__(self, memory: Memory = ATTENTION, *, n_ctx: int = 4096, **model: Any) -> None:
        self.model = FakeModel(memory, **model)
        fake = FakeContext(self.model, n_ctx=n_ctx, n_seq_max=3 + SPARES, n_batch=16)
        self.context = WatchedContext(fake)
        self.engine = Engine(lambda: (self.model, self.context))  # type: ignore[return-value, arg-type]
        self.events: dict[int, list[Progress | Delta]] = {}

    async def begin(self, seq: int, length: int, start: int = 0, **options: Any) -> RunHandle:
        events = self.events.setdefault(seq, [])
        run = run_of(seq, prompt(length, start), **{"ignore_eos": True, **options})
        return await self.engine.run(run, events.append)

    async def paused(self) -> None:
        assert await asyncio.to_thread(self.context.reached.wait, PATIENCE)


@asynccontextmanager
async def running(memory: Memory = ATTENTION, **options: Any) -> AsyncIterator[Bed]:
    bed = Bed(memory, **options)
    await bed.engine.start()
    try:
        yield bed
    finally:
        bed.context.resume.set()
        await bed.engine.stop()


async def end_of(handle: RunHandle) -> Ended:
    event = await handle.wait()
    assert isinstance(event, Ended)
    return event


async def test_only_the_engine_thread_touches_the_context() -> None:
    async with running(HYBRID) as bed:
        engine = bed.engine
        handles = [await bed.begin(seq, 40, seq, capture_end=True) for seq in range(2)]
        for handle in handles:
            await end_of(handle)
        (view, *_) = await engine.views()
        await engine.drain()
        await engine.call(lambda core: core.export_block(0, view.epoch, 0, 10))
        await engine.call(lambda core: core.export_snapshot(0))
        await engine.restore(Landing(2, len(view.tokens), source=0), view.tokens, iter(()))
        with pytest.raises(RestoreRefused):
            await engine.restore(Landing(2, 5, snapshot="s"), view.tokens, iter(()))
        handle = await bed.begin(2, 60)
        handle.cancel()
        await end_of(handle)
    assert bed.context.threads and bed.context.threads != {threading.get_ident()}
    assert len(bed.context.threads) == 1
    assert {"decode", "get_state", "set_state", "seq_cp", "seq_rm", "close"} <= set(
        bed.context.calls
    )


async def test_the_sink_is_called_on_the_event_loop_in_order() -> None:
    threads = set()
    async with running(replies=["hello"]) as bed:
        kinds: list[type] = []

        def sink(event: Progress | Delta) -> None:
            threads.add(threading.get_ident())
            kinds.append(type(event))

        handle = await bed.engine.run(run_of(0, prompt(40), max_tokens=None), sink)
        end = await end_of(handle)
        assert kinds == [Progress, Progress, *[Delta] * 5]
    assert end.text == "hello"
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(("chunk", "evaluated"), [(1, 16), (3, 48), (5, 65), (8, 68)])
async def test_a_cancelled_run_stops_at_the_next_step(chunk: int, evaluated: int) -> None:
    """Prompt of 64 in four chunks. 1. Cancel while step `chunk` computes. 2. No step follows."""
    async with running() as bed:
        bed.context.pause_at = chunk
        handle = await bed.begin(0, 64, max_tokens=None)
        await bed.paused()
        handle.cancel()
        bed.context.resume.set()
        end = await end_of(handle)
        assert end.reason == "cancelled"
        assert end.prefilled == min(evaluated, 64)
        assert len(end.tokens) == (chunk - 3 if chunk >= 4 else 0)
        assert bed.context.fake.evaluated == evaluated
        (view, *_) = await bed.engine.views()
        assert (len(view.tokens), view.running) == (evaluated, False)


async def test_a_run_whose_caller_leaves_while_it_is_being_started_is_cancelled() -> None:
    async with running() as bed:
        hold, held = threading.Event(), threading.Event()

        def block(_core: EngineCore) -> None:
            held.set()
            assert hold.wait(PATIENCE)

        blocker = asyncio.create_task(bed.engine.call(block))
        assert await asyncio.to_thread(held.wait, PATIENCE)
        starting = asyncio.create_task(bed.begin(0, 3000, max_tokens=None))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        hold.set()
        await blocker
        await bed.engine.views()
        (view, *_) = await bed.engine.views()
        assert not view.running
        assert bed.context.fake.evaluated <= 32


async def test_a_starved_run_waits_to_be_told() -> None:
    async with running(n_ctx=64) as bed:
        await end_of(await bed.begin(1, 40, 5, max_tokens=0))
        handle = await bed.begin(0, 40, max_tokens=2)
        assert await handle.wait() == Starved()
        await bed.engine.call(lambda core: core.drop(1))
        await bed.engine.go_on(handle)
        assert (await end_of(handle)).reason == "length"
        handle = await bed.begin(2, 60, 9)
        assert await handle.wait() == Starved()
        await bed.engine.finish(handle, "cancelled")
        assert (await end_of(handle)).reason == "cancelled"


@pytest.mark.parametrize("error", [DecodeFailed("llama_decode returned 2."), RuntimeError("bug")])
async def test_a_failed_decode_fails_every_run_and_the_next_one_works(error: Exception) -> None:
    async with running() as bed:
        bed.context.pause_at = 2
        first = await bed.begin(0, 8, max_tokens=None)
        await bed.paused()
        bed.context.failures[3] = error
        starting = asyncio.create_task(bed.begin(1, 100, 3))
        await asyncio.sleep(0)
        bed.context.resume.set()
        second = await starting
        for handle in (first, second):
            with pytest.raises(DecodeFailed if isinstance(error, DecodeFailed) else EngineError):
                await handle.wait()
            assert handle._outcomes.empty()
        views = await bed.engine.views()
        assert [len(view.tokens) for view in views] == [0, 0, 0]
        assert (await end_of(await bed.begin(0, 20, max_tokens=3))).prefilled == 20


async def test_runs_at_once_say_what_they_say_one_after_the_other() -> None:
    replies = []
    for together in (True, False):
        async with running(HYBRID) as bed:
            ends = []
            handles = []
            for seq in range(3):
                handle = await bed.begin(seq, 20 + seq, seq, max_tokens=20)
                handles.append(handle)
                if not together:
                    ends.append((await end_of(handle)).tokens)
            replies.append(ends or [(await end_of(handle)).tokens for handle in handles])
    assert replies[0] == replies[1]


async def test_a_command_runs_between_two_steps_and_its_error_is_the_callers() -> None:
    async with running() as bed:
        handle = await bed.begin(0, 400, max_tokens=3)
        with pytest.raises(ZeroDivisionError):
            await bed.engine.call(lambda core: 1 // 0)
        assert (await end_of(handle)).reason == "length"


# --- start and stop


async def test_stopping_ends_running_turns_and_frees_everything() -> None:
    closed: list[str] = []

    class ClosingModel(FakeModel):
        def close(self) -> None:
            closed.append("model")

    bed = Bed()
    bed.model = ClosingModel()
    await bed.engine.start()
    bed.context.pause_at = 2
    handle = await bed.begin(0, 100)
    await bed.paused()
    stopping = asyncio.create_task(bed.engine.stop())
    await asyncio.sleep(0)
    bed.context.resume.set()
    await stopping
    assert (await end_of(handle)).reason == "cancelled"
    assert bed.context.calls[-1] == "close"
    assert bed.context.calls.count("close") == 1
    assert closed == ["model"]
    assert bed.context.fake.evaluated < 100
    await bed.engine.stop()


async def test_commands_after_the_stop_fail() -> None:
    async with running() as bed:
        pass
    with pytest.raises(EngineError):
        await bed.engine.views()
    with pytest.raises(EngineError):
        await bed.begin(0, 10)


async def test_commands_given_before_the_stop_are_still_carried_out() -> None:
    bed = Bed()
    await bed.engine.start()
    waiting = [asyncio.create_task(bed.engine.views()) for _ in range(5)]
    await asyncio.sleep(0)
    await bed.engine.stop()
    assert len(await asyncio.gather(*waiting)) == 5


async def test_what_loading_raises_reaches_whoever_started_it() -> None:
    def load() -> tuple[Model, Context]:
        raise ConfigError("no such model", param="model.path")

    engine = Engine(load)
    with pytest.raises(ConfigError, match="no such model"):
        await engine.start()
    with pytest.raises(EngineError):
        await engine.views()
    with pytest.raises(EngineError):
        _ = engine.model
    await engine.stop()


async def test_commands_that_waited_for_a_failing_load_fail_too() -> None:
    loading = threading.Event()

    def load() -> tuple[Model, Context]:
        assert loading.wait(PATIENCE)
        raise ConfigError("no such model")

    engine = Engine(load)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(engine.views())
    await asyncio.sleep(0)
    loading.set()
    with pytest.raises(ConfigError):
        await starting
    with pytest.raises(EngineError):
        await waiting
    await engine.stop()


async def test_stopping_while_it_loads_frees_what_was_loaded() -> None:
    bed, loading = Bed(), threading.Event()

    def load() -> tuple[Model, Context]:
        assert loading.wait(PATIENCE)
        return bed.model, bed.context  # type: ignore[return-value]

    engine = Engine(load)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    loading.set()
    await asyncio.gather(starting, stopping)
    assert bed.context.calls[-1] == "close"


async def test_an_engine_that_was_never_started_can_be_stopped() -> None:
    bed = Bed()
    await bed.engine.stop()
    with pytest.raises(EngineError):
        await bed.engine.views()
