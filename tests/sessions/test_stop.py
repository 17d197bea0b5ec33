"""Stopping: whatever state the daemon is in, everything is let go and what can be saved is."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.engine.context import Context, Model
from sessiond.errors import EngineError, Unavailable
from sessiond.sessions.health import Loaded
from sessiond.store.files import Files
from tests.rig import Daemon, Rig
from tests.sessions.kinds import KINDS, chat, rig_of
from tests.sessions.talk import Talk


def threads() -> set[threading.Thread]:
    kinds = ("engine", "ledger", "store", "ring")
    return {thread for thread in threading.enumerate() if thread.name.startswith(kinds)}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threads()
    yield
    for thread in threads() - before:
        thread.join(10.0)
    assert threads() <= before


async def test_stopping_twice_is_stopping_once(state_dir: Path) -> None:
    daemon = Daemon(rig_of("attention", state_dir))
    await daemon.start()
    await daemon.say("talk", chat("Hi"))
    await asyncio.gather(daemon.lifecycle.stop(), daemon.lifecycle.stop())
    await daemon.lifecycle.stop()


async def test_a_stop_whose_caller_gives_up_goes_on(state_dir: Path) -> None:
    daemon = Daemon(rig_of("attention", state_dir))
    await daemon.start()
    stopping = asyncio.create_task(daemon.lifecycle.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await daemon.lifecycle.stop()


async def test_a_stop_after_a_failed_load(state_dir: Path) -> None:
    def broken() -> tuple[Model, Context]:
        raise EngineError("No such model.")

    daemon = Daemon(Rig(state_dir, broken))
    await daemon.lifecycle.start()
    with pytest.raises(EngineError):
        await daemon.lifecycle.loaded()
    await daemon.lifecycle.stop()


async def test_a_stop_while_the_engine_thread_is_loading(state_dir: Path) -> None:
    """Loading cannot be interrupted, so it is let end; those who wait for it do not have to."""
    go, rig = threading.Event(), rig_of("hybrid", state_dir)
    open_engine = rig.open_engine

    def slow() -> tuple[Model, Context]:
        go.wait()
        return open_engine()

    rig.open_engine = slow
    daemon = Daemon(rig)
    await daemon.lifecycle.start()
    opened = await daemon.open("talk", chat("Hi"))
    stopping = asyncio.create_task(daemon.lifecycle.stop())
    with pytest.raises(Unavailable):
        await anext(opened.events)
    assert not stopping.done()
    go.set()
    await stopping
    assert (await daemon.lifecycle.health()).status == "draining"


async def test_a_stop_before_the_start_of_the_load(state_dir: Path) -> None:
    daemon = Daemon(rig_of("attention", state_dir))
    await daemon.lifecycle.start()
    await daemon.lifecycle.stop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [False, True])
async def test_a_full_disk_does_not_keep_the_daemon_from_stopping(
    state_dir: Path, kind: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig, talk = rig_of(kind, state_dir), Talk(kind)
    rig.whole = whole
    with monkeypatch.context() as patch:
        async with rig.daemon() as daemon:
            await talk.turns(daemon, 2)
            patch.setattr(Files, "write", full)
            patch.setattr(Files, "sync", full)
    async with rig.daemon() as daemon:
        report = (await talk.say(daemon, "And now?")).report
        assert report.miss is not None
        assert (report.cached_tokens, report.miss.cause) == (0, "not_saved")


async def test_whatever_fails_the_rest_is_let_go(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: object, step: object) -> None:
        raise EngineError("The engine has stopped.")

    daemon = Daemon(rig_of("attention", state_dir))
    await daemon.start()
    monkeypatch.setattr("sessiond.sessions.saver.Saver.save_for_stop", broken)
    with pytest.raises(EngineError):
        await daemon.lifecycle.stop()


async def test_a_park_under_way_ends_before_the_engine_does(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid", state_dir), Talk("hybrid")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        parking = asyncio.create_task(daemon.lifecycle.park("talk"))
        await asyncio.sleep(0)
        await daemon.lifecycle.stop()
        assert (await parking).name == "talk"


async def test_a_loader_of_any_kind_of_trouble(state_dir: Path) -> None:
    async def broken() -> Loaded:
        raise ZeroDivisionError

    daemon = Daemon(rig_of("attention", state_dir))
    daemon.lifecycle._host._load = broken
    await daemon.lifecycle.start()
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        await daemon.lifecycle.loaded()
    await daemon.lifecycle.stop()
