"""Who is let in, who waits, and who is told why not, with nothing changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sessiond.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    QueueFull,
    TemplateError,
    Unavailable,
)
from sessiond.sessions.health import Loaded
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.limits import Limits
from sessiond.sessions.turn import Finished, OpenTurn, SessionChange
from tests.api.serving import until
from tests.rig import Daemon, Rig
from tests.sessions.kinds import chat, control, rig_of
from tests.sessions.talk import Talk, checked


async def finished(opened: OpenTurn) -> Finished:
    *_, last = [event async for event in opened.events]
    assert isinstance(last, Finished)
    return last


def contents(rig: Rig) -> list[tuple[object, ...]]:
    """Everything in the ledger."""
    ledger = Ledger(rig.directory / "ledger.sqlite")
    try:
        return [
            row
            for table in ("session", "turn")
            for row in ledger._connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
        ]
    finally:
        ledger.close()


# --- the queue


@pytest.mark.parametrize("capacity", [0, 1, 3])
async def test_as_many_turns_wait_as_the_queue_holds(state_dir: Path, capacity: int) -> None:
    """Also when all of them come at once, before the first has begun."""
    rig = rig_of("attention", state_dir, lines=1)
    rig.limits = Limits(queue=capacity)
    async with rig.daemon() as daemon:
        opened = [await daemon.open(f"s{i}", chat("Hi")) for i in range(capacity + 1)]
        with pytest.raises(QueueFull) as refusal:
            await daemon.open("one too many", chat("Hi"))
        assert refusal.value.retry_after
        for turn in opened:
            assert (await finished(turn)).text == control("attention", chat("Hi"))
        await daemon.say("now", chat("Hi"))
        names = {summary.name for summary in await daemon.lifecycle.summaries()}
        assert names == {*(f"s{i}" for i in range(capacity + 1)), "now"}


async def test_a_burst_for_sessions_that_must_be_read_first_is_no_way_around(
    state_dir: Path,
) -> None:
    rig = rig_of("attention", state_dir, lines=1)
    async with rig.daemon() as daemon:
        for number in range(5):
            await daemon.say(f"s{number}", chat("Hi"))
    rig.limits = Limits(queue=1)
    async with rig.daemon() as daemon:
        burst = [daemon.open(f"s{number}", chat("Hi")) for number in range(5)]
        opened = await asyncio.gather(*burst, return_exceptions=True)
        assert sum(isinstance(one, QueueFull) for one in opened) == 3
        for turn in opened:
            if isinstance(turn, OpenTurn):
                await finished(turn)


async def test_turns_are_served_in_the_order_they_came(state_dir: Path) -> None:
    async with rig_of("attention", state_dir, lines=1).daemon() as daemon:
        opened = [await daemon.open(f"s{i}", chat("Hi")) for i in range(5)]
        await asyncio.gather(*(finished(turn) for turn in opened))
        created = [(await daemon.lifecycle.turns(f"s{i}"))[0].created for i in range(5)]
        assert created == sorted(created)


async def test_two_that_start_the_same_new_session_are_both_in_it(state_dir: Path) -> None:
    rig = rig_of("hybrid", state_dir)
    async with rig.daemon() as daemon:
        opened = [await daemon.open("new", chat(f"I am {who}.")) for who in ("one", "two")]
        first, second = [await finished(turn) for turn in opened]
        assert (first.report.turn, second.report.turn) == (1, 2)
        assert second.text == control("hybrid", chat("I am two."))
    async with rig.daemon() as daemon:
        turns = await daemon.lifecycle.turns("new")
        assert [(turn.turn, turn.parent) for turn in turns] == [(1, None), (2, None)]


async def test_a_session_made_while_its_first_turn_runs_takes_the_turn(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        opened = await daemon.open("new", chat("Hi"))
        await daemon.lifecycle.create("new", SessionChange("fork"))
        assert (await finished(opened)).report.saved
    async with rig.daemon() as daemon:
        summary = await daemon.lifecycle.summary("new")
        assert (summary.turns, summary.policy) == (1, "fork")


async def test_a_session_made_while_its_first_turn_is_committed_takes_the_turn(
    state_dir: Path,
) -> None:
    """The ledger is busy: the session that is made waits for it first, the commit behind it."""
    rig, busy = rig_of("attention", state_dir), threading.Event()
    async with rig.daemon() as daemon:
        opened = await daemon.open("new", chat("Hi"))
        worker: Any = daemon.lifecycle._register._worker
        worker.submit(busy.wait)
        making = asyncio.create_task(daemon.lifecycle.create("new", SessionChange("fork")))
        ending = asyncio.create_task(finished(opened))
        await asyncio.to_thread(until, lambda: worker._work_queue.qsize() >= 2)
        busy.set()
        await making
        assert (await ending).report.saved
    async with rig.daemon() as daemon:
        summary = await daemon.lifecycle.summary("new")
        assert (summary.turns, summary.policy) == (1, "fork")


async def test_a_policy_set_while_a_turn_runs_stays(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 1)
        opened = await daemon.open("talk", [*talk.messages, {"role": "user", "content": "Hi"}])
        await daemon.lifecycle.update("talk", SessionChange("fork"))
        await finished(opened)
        assert (await daemon.lifecycle.summary("talk")).policy == "fork"


# --- what is refused


@pytest.mark.parametrize("known", [False, True])
async def test_a_prompt_beyond_the_limit_changes_nothing(state_dir: Path, known: bool) -> None:
    rig, talk = rig_of("hybrid", state_dir, n_ctx=800), Talk("hybrid")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    before = contents(rig)
    async with rig.daemon() as daemon:
        listed = await daemon.lifecycle.summaries()
        asked = [*talk.messages, {"role": "user", "content": "x" * 800}]
        with pytest.raises(ContextLengthExceeded) as refusal:
            await daemon.open("talk" if known else "new", asked)
        assert refusal.value.param == "messages"
        assert "exceeds the available context size of 800 tokens" in str(refusal.value)
        assert await daemon.lifecycle.summaries() == listed
        assert daemon.evaluated == 0
    assert contents(rig) == before
    async with rig.daemon() as daemon:
        assert (await talk.say(daemon, "Shorter.")).report.miss is None


async def test_the_longest_prompt_is_answered(state_dir: Path) -> None:
    prompt = "x" * 800
    rig = rig_of("attention", state_dir, n_ctx=800)
    async with rig.daemon() as daemon:
        reply = await checked(daemon, "attention", "full", prompt, max_tokens=1)
        assert reply.report.finish_reason == "length"
        with pytest.raises(ContextLengthExceeded) as refusal:
            await daemon.say("full", prompt + "y")
        assert refusal.value.param == "prompt"


async def test_a_prompt_without_tokens_is_refused(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        with pytest.raises(InvalidRequest) as refusal:
            await daemon.open("empty", "")
        assert refusal.value.param == "prompt"
        assert await daemon.lifecycle.summaries() == []


async def test_a_template_that_refuses_changes_nothing(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    rig.template = "{{ raise_exception('no system prompts') }}"
    async with rig.daemon() as daemon:
        with pytest.raises(TemplateError):
            await daemon.open("talk", chat("Hi"))
        assert await daemon.lifecycle.summaries() == []


# --- loading and stopping


@asynccontextmanager
async def loading(
    rig: Rig, *, failure: Exception | None = None
) -> AsyncGenerator[tuple[Daemon, asyncio.Event]]:
    """A daemon whose model is loaded (or fails to be) when the event is set."""
    daemon, go = Daemon(rig), asyncio.Event()
    load = daemon.lifecycle._host._load

    async def later() -> Loaded:
        await go.wait()
        if failure:
            raise failure
        return await load()

    daemon.lifecycle._host._load = later
    await daemon.lifecycle.start()
    try:
        yield daemon, go
    finally:
        go.set()
        await daemon.lifecycle.stop()


async def test_requests_wait_while_the_model_loads(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid", state_dir), Talk("hybrid")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        await Talk("hybrid", session="other").turns(daemon, 1)
    async with loading(rig) as (daemon, go):
        health = await daemon.lifecycle.health()
        assert (health.status, health.model, health.sessions) == ("loading", None, 2)
        listed = await daemon.lifecycle.summaries()
        assert {(s.state, s.reason) for s in listed} == {("ledger", "the model is loading")}
        assert len(await daemon.lifecycle.transcript("talk")) == 3
        asked = [*talk.messages, {"role": "user", "content": "Hi"}]
        opened = await daemon.open("talk", asked)
        resuming = asyncio.create_task(daemon.lifecycle.resume("other"))
        await asyncio.sleep(0)
        assert (await daemon.lifecycle.health()).queued == 1
        go.set()
        assert (await finished(opened)).text == control("hybrid", asked)
        assert (await resuming).prefilled_tokens == 0
        assert (await daemon.lifecycle.health()).status == "ok"


async def test_too_many_do_not_wait_for_the_model(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    rig.limits = Limits(queue=1)
    async with loading(rig) as (daemon, go):
        opened = [await daemon.open(f"s{i}", chat("Hi")) for i in range(2)]
        with pytest.raises(QueueFull):
            await daemon.open("one too many", chat("Hi"))
        go.set()
        for turn in opened:
            await finished(turn)


async def test_while_the_model_loads_a_long_prompt_is_refused_in_the_stream(
    state_dir: Path,
) -> None:
    async with loading(rig_of("attention", state_dir, n_ctx=500)) as (daemon, go):
        opened = await daemon.open("talk", chat("x" * 500))
        go.set()
        with pytest.raises(ContextLengthExceeded):
            await anext(opened.events)
        assert await daemon.lifecycle.summaries() == []


async def test_waiting_for_the_model_ends(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    rig.limits = Limits(load_wait=0.01)
    async with loading(rig) as (daemon, _):
        opened = await daemon.open("talk", chat("Hi"))
        with pytest.raises(Unavailable, match="still loading"):
            await anext(opened.events)


@pytest.mark.parametrize("failure", [EngineError("No such file."), OSError("No such file.")])
async def test_a_model_that_cannot_be_loaded_is_said(state_dir: Path, failure: Exception) -> None:
    async with loading(rig_of("attention", state_dir), failure=failure) as (daemon, go):
        opened = await daemon.open("early", chat("Hi"))
        go.set()
        with pytest.raises(Unavailable, match="No such file"):
            await anext(opened.events)
        health = await daemon.lifecycle.health()
        assert health.status == "failed"
        assert "No such file" in health.detail
        with pytest.raises(EngineError):
            await daemon.lifecycle.loaded()
        with pytest.raises(Unavailable, match="No such file"):
            await daemon.open("late", chat("Hi"))
        with pytest.raises(Unavailable, match="No such file"):
            await daemon.lifecycle.ready()
        assert await daemon.lifecycle.summaries() == []


async def test_a_stopping_daemon_admits_nobody(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await daemon.say("talk", chat("Hi"))
        running = await daemon.open("talk", chat("Hi"), max_tokens=200, ignore_eos=True)
        await anext(running.events)
        stopping = asyncio.create_task(daemon.lifecycle.stop())
        await asyncio.sleep(0)
        assert (await daemon.lifecycle.health()).status == "draining"
        for refused in (
            daemon.open("late", chat("Hi")),
            daemon.lifecycle.park("talk"),
            daemon.lifecycle.ready(),
        ):
            with pytest.raises(Unavailable):
                await refused
        assert (await finished(running)).report.completion_tokens == 200
        await stopping
