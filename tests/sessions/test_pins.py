"""A pinned session is back at once, however little room its neighbours leave."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sessiond.sessions import pins
from sessiond.sessions.pins import Pins, sizes_of
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.turn import SessionChange
from sessiond.store.found import Usage
from sessiond.store.store import Store
from tests.rig import Daemon
from tests.sessions.kinds import CONTRASTS, chat, rig_of
from tests.sessions.talk import Talk


async def pin(daemon: Daemon, name: str, pinned: bool = True) -> None:
    await daemon.lifecycle._register.change(name, pinned=pinned)


async def crowd(daemon: Daemon, count: int) -> None:
    """So many other sessions, each with a front of its own, all saved."""
    for number in range(count):
        said = chat("Hello?", front=f"You are number {number}. " * 14)
        await daemon.say(f"other {number}", said)
    await daemon.machine.saver.save_all()


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_a_pinned_session_is_never_evicted(state_dir: Path, kind: str) -> None:
    """
    1. A session is pinned and parked. 2. Others come that need several times the quota.
    Result: it evaluates its new tokens and one more; one that was not pinned is gone.
    """
    rig, talk, plain = rig_of(kind, state_dir), Talk(kind), Talk(kind, session="plain")
    plain.messages = chat(front="Nobody pinned this. " * 15)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        await plain.turns(daemon, 2)
        await daemon.machine.saver.save_all()
        rig.quota = daemon.machine.store.usage().bytes + 40_000
    async with rig.daemon() as daemon:
        held = Pins(daemon.lifecycle._register, lambda: daemon.machine.store)
        await pin(daemon, "talk")
        await held.refresh()
        await crowd(daemon, 12)
        tree = await daemon.lifecycle._register.tree("talk")
        assert sizes_of(tree, daemon.machine.store)
        report = (await talk.say(daemon, "Still there?")).report
        assert report.source == "disk"
        assert report.miss is None
        lost = (await plain.say(daemon, "Still there?")).report
        assert lost.miss is not None
        assert lost.miss.cause == "evicted"
        daemon.machine.store.check_integrity()


async def test_what_is_saved_of_a_pinned_session_is_pinned_by_the_daemon_itself(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned, gone on with, saved, unpinned. Result: the store's pins follow, without being told;
    they are there from the next start on."""
    monkeypatch.setattr(pins, "LOOK_S", 0.01)
    rig, talk = rig_of("hybrid", state_dir), Talk("hybrid")
    async with rig.daemon() as daemon:
        vault = daemon.machine.store._vault

        async def pinned(count: int) -> bool:
            for _ in range(2000):
                tree = await daemon.lifecycle._register.tree("talk")
                keys = frozenset(sizes_of(tree, daemon.machine.store)) if count else frozenset()
                if vault._pinned == keys and len(keys) >= count:
                    return True
                await asyncio.sleep(0.01)
            return False

        await talk.turns(daemon, 1)
        await daemon.machine.saver.save_all()
        assert vault._pinned == set()
        await pin(daemon, "talk")
        assert await pinned(1)
        first = len(vault._pinned)
        await talk.turns(daemon, 3)
        await daemon.machine.saver.save_all()
        assert await pinned(first + 1)
    async with rig.daemon() as daemon:
        vault = daemon.machine.store._vault
        assert len(vault._pinned) > first
        await pin(daemon, "talk", pinned=False)
        assert await pinned(0)


@pytest.mark.parametrize("unloaded", [False, True])
async def test_pinned_just_before_the_quota_gets_smaller(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, unloaded: bool
) -> None:
    """
    1. Two sessions on disk; the model may leave memory. No look at the pins is due.
    2. The older one is pinned, and the quota set to nothing.
    Result: its state is all there, that of the other is gone.
    """
    monkeypatch.setattr(pins, "LOOK_S", 1e9)
    rig, talk, plain = rig_of("attention", state_dir), Talk("attention"), Talk("attention")
    plain.session, plain.messages = "plain", chat(front="Nobody pinned this. " * 15)
    async with rig.daemon() as daemon:
        life = daemon.lifecycle
        await talk.turns(daemon, 2)
        await plain.turns(daemon, 2)
        await daemon.machine.saver.save_all()
        if unloaded:
            life._host.unload()
            await life._host.unloaded()
        store = life.store
        assert store is not None
        kept, gone = [
            set(sizes_of(await life._register.tree(name), store)) for name in ("talk", "plain")
        ]
        await life.update("talk", SessionChange(pinned=True))
        assert store._vault._pinned == kept
        await life.resize(lambda used: (1, 0))
        left = {c.key for c in store._vault.index.oldest(-1)}
        assert left == kept
        assert not left & gone
        assert life._host.status == ("unloaded" if unloaded else "ok")


async def test_pins_are_looked_up_before_the_quota_gets_smaller(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State of a pinned session is saved, and no look is due. Result: it outlives a resize."""
    monkeypatch.setattr(pins, "LOOK_S", 1e9)
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        await daemon.lifecycle.update("talk", SessionChange(pinned=True))
        await talk.turns(daemon, 2)
        await daemon.machine.saver.save_all()
        store = daemon.machine.store
        stored = set(sizes_of(await daemon.lifecycle._register.tree("talk"), store))
        await daemon.lifecycle.resize(lambda used: (1, 0))
        assert {c.key for c in store._vault.index.oldest(-1)} == stored


async def test_one_change_of_the_limits_after_the_other(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. A change of the limits is held up in the middle. 2. Two more come.
    Result: never two at a time, in that order, with the limits that were read last.
    """
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    resize, began, gate = Store.resize, threading.Event(), threading.Event()
    quotas: list[int] = []

    def held(store: Store, quota: int, keep_free: int) -> None:
        quotas.append(quota)
        began.set()
        assert gate.wait(20)
        resize(store, quota, keep_free)

    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        monkeypatch.setattr(Store, "resize", held)
        now = [1 << 30]
        work = [
            asyncio.create_task(daemon.lifecycle.resize(lambda used: (now[0], 0))) for _ in range(3)
        ]
        assert await asyncio.to_thread(began.wait, 20)
        assert quotas == [1 << 30]
        now[0] = 1 << 31
        gate.set()
        await asyncio.gather(*work)
        assert quotas == [1 << 30, 1 << 31, 1 << 31]
        assert daemon.machine.store.usage().quota == 1 << 31


async def test_usage_is_not_asked_for_on_the_event_loop(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    usage = Store.usage

    def noted(store: Store) -> Usage:
        threads.append(threading.current_thread())
        return usage(store)

    async with rig_of("attention", state_dir).daemon() as daemon:
        monkeypatch.setattr(Store, "usage", noted)
        await daemon.lifecycle.resize(lambda used: (1 << 30, 0))
    assert threads
    assert threading.main_thread() not in threads


async def test_a_full_store_is_told_in_health(state_dir: Path) -> None:
    """All room is pinned. Result: turns go on and are saved in the ledger; /health says why state
    is not, and what to do; unpinned, it is over."""
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        await daemon.machine.saver.save_all()
        rig.quota = daemon.machine.store.usage().bytes + 100
    async with rig.daemon() as daemon:
        held = Pins(daemon.lifecycle._register, lambda: daemon.machine.store)
        await pin(daemon, "talk")
        await held.refresh()
        await crowd(daemon, 1)
        health = await daemon.lifecycle.health()
        assert health.status == "ok"
        assert "Model state is not saved" in health.detail
        assert "sessiond unpin NAME" in health.detail
        assert health.unsaved_turns == 0
        report = (await talk.say(daemon, "And now?")).report
        assert report.saved
        await pin(daemon, "talk", pinned=False)
        await held.refresh()
        daemon.machine.store.resize(1 << 30, 0)
        await daemon.machine.saver.save_all()
        assert (await daemon.lifecycle.health()).detail == ""


def test_owners_pin_no_more_than_their_share(caplog: pytest.LogCaptureFixture) -> None:
    """The house pins what it likes; of owners' sessions those used last, while they fit."""
    held = Pins(Register(None), lambda: None)  # type: ignore[arg-type]
    names = ("home", "anna/new", "bob/large", "bob/old")
    records = [SessionRecord.new(name, 0.0) for name in names]
    for record, size in zip(records, (1000, 60, 50, 30), strict=True):
        held._found[record.id] = pins._Found(None, {record.name: size, "shared": 10})
    assert held._wanted(records, 100) == {"home", "anna/new", "bob/old", "shared"}
    assert held._wanted(records, 100) == {"home", "anna/new", "bob/old", "shared"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert held._wanted(records, 1000) == {*names, "shared"}
