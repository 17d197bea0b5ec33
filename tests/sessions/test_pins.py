"""A pinned session is back at once, however little room its neighbours leave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sessiond.sessions import pins
from sessiond.sessions.pins import Pins, keys_of
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
        held = Pins(daemon.lifecycle._register, daemon.machine.store)
        await pin(daemon, "talk")
        await held.refresh()
        await crowd(daemon, 12)
        tree = await daemon.lifecycle._register.tree("talk")
        assert keys_of(tree, daemon.machine.store)
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
                keys = keys_of(tree, daemon.machine.store) if count else frozenset()
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


async def test_a_full_store_is_told_in_health(state_dir: Path) -> None:
    """All room is pinned. Result: turns go on and are saved in the ledger; /health says why state
    is not, and what to do; unpinned, it is over."""
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        await daemon.machine.saver.save_all()
        rig.quota = daemon.machine.store.usage().bytes + 100
    async with rig.daemon() as daemon:
        held = Pins(daemon.lifecycle._register, daemon.machine.store)
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
