"""A daemon with nothing to do sleeps: hours are let pass, and its wake-ups counted."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sessiond.api.app import create_app
from sessiond.api.listening import listen_tcp
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from sessiond.sessions import calm as calm_module
from sessiond.sessions.calm import CALM_S, RARE_S, Calm
from tests.rig import Daemon
from tests.sessions.kinds import chat, rig_of
from tests.sessions.saved_turn import is_on_disk

HOUR_S = 3600.0
SESSIONS = 24
CHORES = 8
"""That look again and again, at most."""


class Skipping(selectors.DefaultSelector):
    """Time that nobody uses passes at once. `wakes` counts the timers that ended a sleep."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.wakes = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # Threads may still be at work: they get a moment, however long it seems to the loop.
        if ready := super().select(0.002):
            return ready
        self._clock.skipped += timeout
        self.wakes += 1
        return []


class Clock:
    def __init__(self) -> None:
        self.skipped = 0.0
        self._real = time.monotonic

    def __call__(self) -> float:
        return self._real() + self.skipped


@pytest.fixture
def selector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Skipping]:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    yield Skipping(clock)


def run(selector: Skipping, work: Any) -> Any:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(work)


async def served_for_an_hour(daemon: Daemon, selector: Skipping) -> int:
    """Wake-ups of the hour that begins when the daemon has come to rest."""
    stop, bound = asyncio.Event(), asyncio.Event()
    server = asyncio.create_task(
        run_server(
            create_app(daemon.lifecycle, ApiConfig()),
            listen_tcp("127.0.0.1", 0),
            on_stop=lambda: asyncio.sleep(0),
            on_bound=lambda addresses: bound.set(),
            stop=stop,
        )
    )
    await bound.wait()
    await asyncio.sleep(CALM_S + RARE_S)
    before = selector.wakes
    await asyncio.sleep(HOUR_S)
    wakes = selector.wakes - before
    stop.set()
    assert await server == 0
    return wakes


@pytest.mark.parametrize("sessions", [0, SESSIONS])
def test_an_idle_daemon_wakes_a_few_times_an_hour(
    selector: Skipping, state_dir: Path, sessions: int
) -> None:
    """24 sessions in the context, or none. Result: no chore looks more often than once a minute."""

    async def idle() -> int:
        rig = rig_of("hybrid+swa", state_dir, lines=SESSIONS)
        async with rig.daemon() as daemon:
            for number in range(sessions):
                await daemon.say(f"s{number}", chat(f"I am {number}.", front=""), max_tokens=2)
            assert daemon.machine.engine.core.resident == sessions
            return await served_for_an_hour(daemon, selector)

    assert run(selector, idle()) <= CHORES * HOUR_S / RARE_S


def test_a_daemon_at_rest_wakes_for_a_turn_and_saves_it(
    selector: Skipping, state_dir: Path
) -> None:
    """1. An hour of rest. 2. A turn. Result: its state comes to disk."""

    async def rested() -> None:
        async with rig_of("hybrid+swa", state_dir).daemon(kill=True) as daemon:
            await asyncio.sleep(HOUR_S)
            await daemon.say("talk", chat("Are you there?"), max_tokens=4)
            for _ in range(2000):
                if await is_on_disk(daemon, "hybrid+swa"):
                    return
                await asyncio.sleep(0.5)
            pytest.fail("it was not saved")

    run(selector, rested())


async def test_chores_keep_their_pace_until_the_daemon_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Result: a pause is short until then, and later as long as nothing is stirred."""
    now = time.monotonic()
    # The loop keeps the real one.
    monkeypatch.setattr(calm_module, "time", SimpleNamespace(monotonic=lambda: now))
    calm = Calm()
    await calm.pause(0.0, rare=1e9)
    now += CALM_S
    assert calm.resting
    await calm.pause(0.0, busy=True, rare=1e9)
    pausing = [asyncio.create_task(calm.pause(0.0, rare=1e9)) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in pausing)
    calm.stir()
    await asyncio.gather(*pausing)
    assert not calm.resting


@pytest.mark.parametrize("resting", [True, False])
async def test_a_turn_wakes_a_saver_that_rests(state_dir: Path, resting: bool) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        saver = daemon.machine.saver
        saver._dozing = resting
        saver.active()
        assert saver._poked.is_set() is resting
