"""A model that nobody uses leaves memory. Sessions stay, and who wants it waits and is served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sessiond.api.routing import ApiConfig
from sessiond.engine.context import Context, Model
from sessiond.errors import EngineError, SessionNotFound, StoreFull, Unavailable
from sessiond.sessions.register import Register
from sessiond.sessions.turn import SessionChange, Status
from sessiond.store.store import Store
from tests.api.serving import serving
from tests.rig import Daemon, Rig
from tests.rig.rig import real
from tests.sessions.kinds import FRONT, KINDS, chat, prompt_of, rig_of
from tests.sessions.talk import Talk

each_kind = pytest.mark.parametrize("kind", KINDS)
AT_ONCE = 0.01
CYCLES = 20


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def leaving(daemon: Daemon) -> None:
    """The model begins to leave memory, as it does when its time is over."""
    life, host = daemon.lifecycle, daemon.lifecycle._host
    await until(lambda: host.idle_s(life._in_use) > 0)
    host.unload()


async def unloaded(daemon: Daemon) -> None:
    await leaving(daemon)
    await daemon.lifecycle._host.unloaded()


async def status(daemon: Daemon) -> Status:
    return (await daemon.lifecycle.health()).status


class Gate:
    """Holds up whoever comes through, in whatever thread, until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def pass_(self) -> None:
        self.reached.set()
        assert self.opened.wait(20)


def hold_saving(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The last thing that is done before the model is freed."""
    gate, sync = Gate(), Store.sync

    def held(store: Store) -> None:
        gate.pass_()
        sync(store)

    monkeypatch.setattr(Store, "sync", held)
    return gate


def hold_loading(rig: Rig) -> Gate:
    """From the second time on that the model is loaded."""
    gate, open_, first = Gate(), rig.open_engine, [True]

    def held() -> tuple[Model, Context]:
        if first:
            first.clear()
        else:
            gate.pass_()
        return open_()

    rig.open_engine = held
    return gate


# --- what stays


@each_kind
async def test_sessions_stay_and_the_next_turn_goes_on(state_dir: Path, kind: str) -> None:
    """
    1. Two turns; the model leaves memory.
    2. List; another turn.
    Result: listed as parked sessions are; the turn evaluates its new tokens + 1.
    """
    talk = Talk(kind)
    async with rig_of(kind, state_dir).daemon() as daemon:
        await talk.turns(daemon, 2)
        standing = talk.standing
        await unloaded(daemon)
        (listed,) = await daemon.lifecycle.summaries()
        assert (listed.state, listed.reason, listed.turns) == ("disk", "", 2)
        assert standing <= listed.tokens <= standing + 1
        assert (listed.bytes > 0, listed.back_in_ms > 0) == (True, True)
        health = await daemon.lifecycle.health()
        assert (health.status, health.detail, health.model) == ("unloaded", "", "fake")
        assert (health.n_ctx, health.max_lines, health.resident_lines) == (1 << 16, 4, 0)
        assert (health.ring_bytes, health.staging, health.disk_bytes > 0) == (0, "none", True)
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.miss, report.cached_tokens) == ("disk", None, standing)
        assert daemon.loads == 2


async def test_what_needs_no_model_loads_none(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk, life = Talk("attention"), daemon.lifecycle
        await talk.turns(daemon, 2)
        await unloaded(daemon)
        assert (await life.summary("talk")).turns == 2
        assert (await life.update("talk", SessionChange(policy="fork"))).policy == "fork"
        assert (await life.create("new", SessionChange())).turns == 0
        assert (await life.fork("talk", "twin", None)).state == "disk"
        assert (await life.park("talk")).state == "disk"
        assert (await life.compact("talk")).may_compact
        assert len(await life.turns("talk")) == 2
        assert len(await life.transcript("talk")) == 5
        assert await life.explain("talk") == ()
        assert (await life.verify()).clean
        served = await life.served()
        assert (served.model, served.eos, life.model_name) == ("fake", "<|im_end|>", "fake")
        await life.delete("new")
        assert (daemon.loads, await status(daemon)) == (1, "unloaded")


async def test_a_session_that_is_removed_leaves_no_files(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        await Talk("hybrid").turns(daemon, 2)
        await unloaded(daemon)
        assert (await daemon.lifecycle.health()).disk_bytes > 0
        await daemon.lifecycle.delete("talk")
        health = await daemon.lifecycle.health()
        assert (health.disk_bytes, health.sessions, daemon.loads) == (0, 0, 1)
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.summary("talk")


@each_kind
async def test_another_model_may_be_there_when_it_is_loaded_again(
    state_dir: Path, kind: str
) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        await unloaded(daemon)
        rig.fingerprint = replace(rig.fingerprint, model="other")
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.cached_tokens) == ("ledger", 0)
        assert report.miss is not None
        assert report.miss.cause == "model_changed"


async def test_resume_and_counting_load_it(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 1)
        await unloaded(daemon)
        resumed = await daemon.lifecycle.resume("talk")
        assert (resumed.source, resumed.prefilled_tokens, daemon.loads) == ("disk", 0, 2)
        await unloaded(daemon)
        vocabulary = await daemon.lifecycle.vocabulary()
        assert await vocabulary.tokens("ab", add_special=False, parse_special=False) == [97, 98]
        assert daemon.loads == 3


async def test_never_is_never(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        host = daemon.lifecycle._host
        watching = asyncio.create_task(host.unload_when_idle(lambda: 0.0, lambda: False))
        await asyncio.sleep(0.05)
        assert (host.status, watching.done()) == ("ok", False)
        watching.cancel()


# --- when it must not begin


@asynccontextmanager
async def generating(daemon: Daemon) -> AsyncGenerator[None, None]:
    """A turn that waits on the engine, and one behind it."""
    gate = Gate()
    held = asyncio.create_task(daemon.machine.engine.call(lambda core: gate.pass_()))
    turns = [asyncio.create_task(daemon.say(name, chat("Hi"))) for name in ("one", "two")]
    await until(lambda: daemon.lifecycle._floor.running > 0)
    try:
        yield
    finally:
        gate.opened.set()
        await asyncio.gather(held, *turns)


@asynccontextmanager
async def working(daemon: Daemon, work: Awaitable[object]) -> AsyncGenerator[None, None]:
    gate = Gate()
    held = asyncio.create_task(daemon.machine.engine.call(lambda core: gate.pass_()))
    await asyncio.to_thread(gate.reached.wait, 20)
    working = asyncio.ensure_future(work)
    for _ in range(20):
        await asyncio.sleep(0)
    try:
        yield
    finally:
        gate.opened.set()
        await asyncio.gather(held, working)


async def test_it_stays_for_whoever_uses_it(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns under way and waiting, a resume, a park, a check of the store, a save; and for turns
    that are not in the ledger yet.
    """
    async with rig_of("attention", state_dir, lines=1).daemon() as daemon:
        life, host = daemon.lifecycle, daemon.lifecycle._host
        await daemon.say("talk", chat("Hi"))
        await until(lambda: host.idle_s(life._in_use) > 0)
        async with generating(daemon):
            assert host.idle_s(life._in_use) == 0.0
        view = (await daemon.machine.engine.views())[0]
        for work in (
            life.resume("talk"),
            life.park("talk"),
            life.verify(),
            daemon.machine.saver.save(view),
        ):
            await until(lambda: host.idle_s(life._in_use) > 0)
            async with working(daemon, work):
                assert host.idle_s(life._in_use) == 0.0
        await until(lambda: host.idle_s(life._in_use) > 0)
        monkeypatch.setattr(Register, "unsaved", 1)
        assert host.idle_s(life._in_use) == 0.0


async def test_a_turn_that_is_being_decided_keeps_it(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        life, host = daemon.lifecycle, daemon.lifecycle._host
        opening = asyncio.create_task(daemon.open("talk", chat("Hi")))
        await asyncio.sleep(0)
        assert host.idle_s(life._in_use) == 0.0
        opened = await opening
        assert host.idle_s(life._in_use) == 0.0
        assert [event async for event in opened.events]


# --- who comes in between


@each_kind
async def test_a_turn_that_comes_while_it_leaves_is_served(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(kind)
    async with rig_of(kind, state_dir).daemon() as daemon:
        await talk.turns(daemon, 1)
        standing, gate = talk.standing, hold_saving(monkeypatch)
        await leaving(daemon)
        await asyncio.to_thread(gate.reached.wait, 20)
        assert await status(daemon) == "unloaded"
        turn = asyncio.create_task(talk.say(daemon, "And now?"))
        await until(lambda: daemon.lifecycle._host.status == "loading")
        assert (turn.done(), daemon.loads) == (False, 1)
        gate.opened.set()
        report = (await turn).report
        assert (report.source, report.miss, report.cached_tokens) == ("disk", None, standing)


async def test_it_leaves_when_its_time_is_over_and_not_before(state_dir: Path) -> None:
    """The time is over while turns are under way: it stays, and leaves afterwards, again and again.
    Looking at sessions does not keep it.
    """
    rig = rig_of("attention", state_dir, lines=1)
    rig.limits = replace(rig.limits, unload_after=AT_ONCE)
    async with rig.daemon() as daemon:
        host = daemon.lifecycle._host
        for loads in (1, 2):
            await daemon.lifecycle.ready()
            async with daemon.lifecycle._model():
                for _ in range(3):
                    await asyncio.sleep(2 * AT_ONCE)
                    assert (host.status, daemon.loads) == ("ok", loads)
            async with asyncio.timeout(20):
                while host.status != "unloaded":
                    await daemon.lifecycle.summaries()
            await host.unloaded()


async def test_streams_are_kept_alive_while_it_loads(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    gate = hold_loading(rig)
    body = {"messages": chat("Hi"), "stream": True, "max_tokens": 4, "return_progress": True}
    async with (
        rig.daemon() as daemon,
        serving(daemon.lifecycle, ApiConfig(keepalive=0.02)) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        await unloaded(daemon)
        assert (await client.get("/health")).status_code == 200
        listed = (await client.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["fake"]
        assert (await client.get("/props")).json()["model_alias"] == "fake"
        assert daemon.loads == 1
        async with client.stream("POST", "/s/talk/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            assert [await anext(lines) for _ in range(3)] == [": ", "", ": "]
            assert (await client.get("/health")).json()["status"] == "loading"
            gate.opened.set()
            told = [line async for line in lines if line.startswith("data:")]
        assert any("prompt_progress" in line for line in told)
        assert told[-1] == "data: [DONE]"


# --- when it goes wrong


async def test_a_failed_load_is_told_and_tried_again(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    open_, troubles = rig.open_engine, ["No memory.", "Still none."]

    async with rig.daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 1)
        standing = talk.standing
        await unloaded(daemon)

        def broken() -> tuple[Model, Context]:
            if troubles:
                raise EngineError(troubles.pop(0))
            return open_()

        rig.open_engine = broken
        for trouble in tuple(troubles):
            with pytest.raises(Unavailable, match=trouble):
                await daemon.say("talk", chat("Hi"))
            health = await daemon.lifecycle.health()
            assert (health.status, health.detail) == ("unloaded", trouble)
            assert (await daemon.lifecycle.summary("talk")).state == "disk"
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.cached_tokens) == ("disk", standing)
        assert (await daemon.lifecycle.health()).detail == ""


async def test_a_first_load_that_fails_is_not_tried_again(state_dir: Path) -> None:
    tries: list[int] = []

    def broken() -> tuple[Model, Context]:
        tries.append(1)
        raise EngineError("No such model.")

    daemon = Daemon(Rig(state_dir, broken))
    await daemon.lifecycle.start()
    with pytest.raises(EngineError):
        await daemon.lifecycle.loaded()
    for _ in range(2):
        with pytest.raises(Unavailable, match="No such model"):
            await daemon.open("talk", chat("Hi"))
    assert (tries, await status(daemon)) == ([1], "failed")
    await daemon.stop()


async def test_whatever_fails_while_it_leaves_it_leaves(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next turn pays with prefill, nothing else."""

    async def broken(self: object, step: object) -> None:
        raise EngineError("The engine has stopped.")

    async with rig_of("hybrid", state_dir).daemon() as daemon:
        talk = Talk("hybrid")
        with monkeypatch.context() as patch:
            patch.setattr("sessiond.sessions.saver.Saver.save_for_stop", broken)
            await talk.turns(daemon, 1)
            await unloaded(daemon)
        assert (await talk.say(daemon, "And now?")).report.turn == 2


# --- stopping


@each_kind
async def test_a_stop_while_it_leaves(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that waits for it by then is refused, and the model is not loaded for it."""
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        gate = hold_saving(monkeypatch)
        await leaving(daemon)
        await asyncio.to_thread(gate.reached.wait, 20)
        waiting = asyncio.create_task(daemon.say("talk", chat("Hi")))
        await until(lambda: daemon.lifecycle._host.status == "loading")
        stopping = asyncio.create_task(daemon.stop())
        with pytest.raises(Unavailable, match="stopping"):
            await waiting
        assert not stopping.done()
        gate.opened.set()
        await stopping
        assert daemon.loads == 1
    standing = talk.standing
    async with rig.daemon() as daemon:
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.cached_tokens) == ("disk", standing)


async def test_a_stop_while_it_is_loaded_again(state_dir: Path) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    gate = hold_loading(rig)
    daemon = Daemon(rig)
    await daemon.start()
    await talk.turns(daemon, 1)
    await unloaded(daemon)
    waiting = asyncio.create_task(daemon.say("talk", chat("Hi")))
    await asyncio.to_thread(gate.reached.wait, 20)
    stopping = asyncio.create_task(daemon.stop())
    with pytest.raises(Unavailable, match="stopping"):
        await waiting
    assert not stopping.done()
    gate.opened.set()
    await stopping
    async with rig.daemon() as again:
        assert (await talk.say(again, "And now?")).report.source == "disk"


# --- state that cannot be saved


async def test_state_that_cannot_be_saved_keeps_the_model(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving fails, then it does not. Result: the model is in use until all is saved."""
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        life, saver = daemon.lifecycle, daemon.machine.saver
        with monkeypatch.context() as patched:
            patched.setattr(Store, "put_block", no_room)
            await talk.turns(daemon, 1)
            await saver.save_all()
            assert saver.behind
            assert life._in_use()
            assert life._host.idle_s(life._in_use) == 0.0
        await saver.save_all()
        assert not life._in_use()


async def test_a_store_that_is_to_keep_nothing_does_not_keep_the_model(state_dir: Path) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    rig.quota = 0
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        await daemon.machine.saver.save_all()
        assert daemon.machine.store.usage().blocks == 0
        await unloaded(daemon)


async def test_what_is_lost_in_the_end_is_said(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full just when the model leaves. Result: the log and /health say so, and still
    do without a model."""
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        monkeypatch.setattr(Store, "put_block", no_room)
        daemon.lifecycle._host.unload()
        await daemon.lifecycle._host.unloaded()
        assert "State could not be saved when the model left memory" in caplog.text
        assert "Sessions: 1." in caplog.text
        health = await daemon.lifecycle.health()
        assert (health.status, health.detail) == ("unloaded", "No room.")


def no_room(store: Store, *arguments: object) -> int:
    store._vault.trouble.begins("No room.", 1)
    raise StoreFull("No room.")


async def test_a_stop_of_a_daemon_that_is_unloaded(state_dir: Path) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        await unloaded(daemon)
    async with rig.daemon() as again:
        assert (await talk.say(again, "And now?")).report.miss is None


# --- again and again


def held_by_the_process() -> tuple[int, int]:
    """Threads of ours, and open files."""
    names = ("engine", "store-write", "ring", "ledger")
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(names)]
    return len(threads), len(list(Path("/proc/self/fd").iterdir()))


def mapped(path: Path) -> int:
    """How often a file is mapped into memory."""
    return Path("/proc/self/maps").read_text().count(str(path.resolve()))


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_cycles_leak_nothing(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk, seen = Talk(kind), set()
        for _ in range(CYCLES):
            await talk.say(daemon, "Again?", max_tokens=2)
            await unloaded(daemon)
            seen.add(held_by_the_process())
        assert len(seen) == 1
        assert daemon.loads == CYCLES


async def test_cycles_of_a_real_model_leak_nothing(hybrid_path: Path, state_dir: Path) -> None:
    rig = Rig(state_dir, real(hybrid_path, n_ctx=512, n_batch=64, n_ubatch=64))
    others = mapped(hybrid_path)  # the worlds of tests/engine stay loaded in this process
    async with rig.daemon() as daemon:
        messages = chat("Hi", front=FRONT[:60])
        first = await daemon.say("talk", messages, max_tokens=2)
        seen = set()
        for _ in range(6):
            assert mapped(hybrid_path) > others
            await unloaded(daemon)
            assert mapped(hybrid_path) == others
            seen.add(held_by_the_process())
            reply = await daemon.say("talk", messages, max_tokens=2)
            assert (reply.report.prefilled_tokens, reply.text) == (1, first.text)
        assert len(seen) == 1


def test_prompts_here_are_longer_than_a_block() -> None:
    assert len(prompt_of(chat("Hi"))) > 256
