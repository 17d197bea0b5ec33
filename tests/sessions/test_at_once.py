"""Two things at once, in the one order in which they are in each other's way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessiond.errors import SessionNotFound, Unavailable
from sessiond.sessions import pruning
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.pruning import Pruned, Pruner
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.turn import SessionChange
from tests.sessions.kinds import chat, rig_of
from tests.sessions.talk import Talk
from tests.sessions.turns import make_turn

WAIT_S = 20.0
ALONE = SessionRecord.new("a", 1.0)
DAY_S = 86400.0


class Held:
    """Calls of a method of the ledger are held, before or after its work, until `let_go`."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, *, after: bool = False) -> None:
        self._reached, self._go = threading.Event(), threading.Event()
        self._method: Callable[..., Any] = getattr(Ledger, name)
        held = self

        def method(ledger: Ledger, *arguments: Any) -> Any:
            if after:
                done = held._method(ledger, *arguments)
                held._pass()
                return done
            held._pass()
            return held._method(ledger, *arguments)

        patch.setattr(Ledger, name, method)

    def _pass(self) -> None:
        self._reached.set()
        assert self._go.wait(WAIT_S)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, WAIT_S)

    def let_go(self) -> None:
        self._go.set()


@asynccontextmanager
async def behind(patch: pytest.MonkeyPatch) -> AsyncGenerator[None, None]:
    """Left when something that began inside waits for the ledger's thread."""
    asked, work = asyncio.Event(), Register._work

    async def heard(register: Register, function: Callable[[], Any]) -> Any:
        asked.set()
        return await work(register, function)

    with patch.context() as inside:
        inside.setattr(Register, "_work", heard)
        yield
        async with asyncio.timeout(WAIT_S):
            await asked.wait()


@asynccontextmanager
async def registered(directory: Path, *records: SessionRecord) -> AsyncGenerator[Register, None]:
    register = Register(Ledger(directory / "ledger.sqlite"))
    await register.open()
    for record in records:
        await register.create(record)
    yield register
    await register.close()


# --- a session that is on its way out


@pytest.mark.parametrize("asks", ["unrelated", "goes on", "names it", "is its child"])
async def test_a_turn_beside_the_removal_of_a_session_is_served(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """
    1. An old session is pruned: the ledger has removed it, the daemon is not told so yet. 2. A
    request comes that looks into it. Result: it is answered, in a session of its own.
    """
    async with rig_of("attention", state_dir).daemon() as daemon:
        first = await daemon.say(None, chat("Hello"), named=False)
        old = daemon.lifecycle._register[first.report.session]
        held = Held(monkeypatch, "delete", after=True)
        pruning_ = asyncio.create_task(daemon.lifecycle.pruner.look(time.time() + 99 * DAY_S))
        await held.reached()
        name, parent = old.name if asks == "names it" else None, None
        messages = chat("Hello", first.text, "And then?")
        if asks == "unrelated":
            messages = chat("Something else", front="")
        elif asks == "is its child":
            name, parent = "child", old.name
        async with behind(monkeypatch):
            asking = asyncio.create_task(daemon.say(name, messages, named=False, parent=parent))
        held.let_go()
        report = (await asking).report
        assert await pruning_ == Pruned(1, 1)
        assert (report.turn, report.saved) == (1, True)
        assert report.session == name or name is None
        assert [r.id for r in daemon.lifecycle._register.records] != [old.id]
        assert [record.name for record in daemon.ledger.sessions()] == [report.session]


async def test_a_change_beside_a_removal_brings_nothing_back(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registered(state_dir, ALONE) as register:
        held = Held(monkeypatch, "delete")
        deleting = asyncio.create_task(register.delete("a"))
        await held.reached()
        async with behind(monkeypatch):
            changing = asyncio.create_task(register.change("a", policy="fork"))
        held.let_go()
        await deleting
        with pytest.raises(SessionNotFound):
            await changing
        assert register.records == []


# --- a session that is changed while a turn of it ends


async def test_a_change_beside_a_commit_loses_nothing(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. The policy is being set. 2. A turn is committed that gives the title and uses up a permission
    to compact. 3. Something else is set. Result: after each, memory and ledger have all of it.
    """
    record, turn = replace(ALONE, may_compact=True), make_turn(1)
    async with registered(state_dir, record) as register:
        held, tree = Held(monkeypatch, "update"), await register.tree("a")
        changing = asyncio.create_task(register.change("a", policy="fork"))
        await held.reached()
        async with behind(monkeypatch):
            titled = replace(record, title="Title")
            committing = asyncio.create_task(register.commit(titled, tree, turn, compacts=True))
        held.let_go()
        await changing
        assert await committing
        used = record.used(turn.created)
        expected = replace(used, policy="fork", title="Title", may_compact=False)
        assert register.records == register._ledger.sessions() == [expected]
        await register.change("a", pinned=True)
        expected = replace(expected, pinned=True)
        assert register.records == register._ledger.sessions() == [expected]


# --- a turn that is being written


async def test_a_turn_that_is_being_written_is_no_trouble(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    1. A turn is being written. 2. Meanwhile the daemon is asked how it is, and another commit ends.
    Result: nothing is said to be unsaved.
    """
    async with rig_of("attention", state_dir).daemon() as daemon:
        life = daemon.lifecycle
        held = Held(monkeypatch, "commit")
        asking = asyncio.create_task(daemon.say("talk", chat("Hello")))
        await held.reached()
        life._register._say_so()
        health = await life.health()
        assert (health.unsaved_turns, health.detail) == (0, "")
        assert life._register.is_saved(life._register["talk"])
        held.let_go()
        assert (await asking).report.saved
    assert "not saved" not in caplog.text


# --- the end


async def test_what_comes_while_the_ledger_is_closed_is_refused(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = Register(Ledger(state_dir / "ledger.sqlite"))
    await register.create(ALONE)
    held = Held(monkeypatch, "close")
    closing = asyncio.create_task(register.close())
    await held.reached()
    deleting = asyncio.create_task(register.delete("a"))
    await asyncio.sleep(0)
    held.let_go()
    with pytest.raises(Unavailable):
        await deleting
    await closing
    with pytest.raises(Unavailable):
        await register.close()


async def test_a_stop_lets_no_session_be_removed_renamed_or_parked(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        life = daemon.lifecycle
        await Talk("attention").turns(daemon, 1)
        opened = await daemon.open("long", chat("Hi"), max_tokens=30_000, ignore_eos=True)
        await anext(opened.events)
        stopping = asyncio.create_task(life.stop())
        await asyncio.sleep(0)
        rename = life.update("talk", SessionChange(name="other"))
        operations = [life.delete("talk"), life.park("talk"), rename]
        refused = await asyncio.gather(*operations, return_exceptions=True)
        await opened.events.aclose()
        await stopping
        assert [type(error) for error in refused] == [Unavailable] * 3
    async with rig_of("attention", state_dir).daemon() as daemon:
        assert len(await daemon.lifecycle.turns("talk")) == 1


# --- housekeeping


async def test_housekeeping_goes_on_after_whatever_goes_wrong(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    over, looks = asyncio.Event(), list[float]()

    async def look(_pruner: Pruner, now: float, _over: asyncio.Event) -> Pruned:
        looks.append(now)
        if len(looks) < 2:
            raise ZeroDivisionError
        over.set()
        return Pruned()

    async with rig_of("attention", state_dir).daemon() as daemon:
        monkeypatch.setattr(pruning, "FIRST_S", 0.0)
        monkeypatch.setattr(pruning, "EVERY_S", 0.0)
        monkeypatch.setattr(Pruner, "look", look)
        async with asyncio.timeout(WAIT_S):
            await daemon.lifecycle.pruner.watch(over)
    assert len(looks) == 2
    assert "Housekeeping goes on in an hour" in caplog.text


async def test_what_is_kept_for_centuries_is_looked_at_without_trouble(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    rig.limits = replace(rig.limits, keep=999_999 * DAY_S)
    async with rig.daemon() as daemon:
        await daemon.say("talk", chat("Hello"), named=False)
        assert await daemon.lifecycle.pruner.look(time.time()) == Pruned()
