"""A request that comes again while its first try is under way, or with the key of one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sessiond.engine.sampling import Ending
from sessiond.errors import InvalidRequest
from sessiond.sessions import turn_task
from sessiond.sessions.transcript import read_chat
from sessiond.sessions.turn import Finished, OpenTurn, SessionRef, Spoken, TurnRequest
from tests.rig import Daemon
from tests.rig.rig import GREEDY
from tests.sessions.kinds import KINDS, Messages, chat, control, prompt_of, rig_of

ASKED = chat("Tell me a long story.")


def request(messages: Messages = ASKED, key: str | None = None) -> TurnRequest:
    return TurnRequest(
        SessionRef("talk", named=True),
        read_chat(list(messages)),
        GREEDY,
        Ending(max_tokens=12),
        idempotency_key=key,
    )


async def text_of(opened: OpenTurn) -> tuple[str, int]:
    """What was streamed, and the turn it became."""
    events = [event async for event in opened.events]
    last = events[-1]
    assert isinstance(last, Finished)
    said = "".join(event.text for event in events if isinstance(event, Spoken))
    assert said == last.text
    return said, last.report.turn


@pytest.fixture(autouse=True)
def somebody_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_task, "LINGER_S", 30.0)


class Halted:
    """The engine stands still inside, so that a turn has no token yet."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def __aenter__(self) -> None:

        self._go = threading.Event()
        work = self._daemon.machine.engine.call(lambda core: self._go.wait(20))
        self._halt = asyncio.create_task(work)
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        self._go.set()
        assert await self._halt


@pytest.mark.parametrize("kind", KINDS)
async def test_a_retry_takes_over_the_turn_whose_client_has_gone(
    state_dir: Path, kind: str
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        async with Halted(daemon):
            first = await daemon.lifecycle.open(request())
            await first.events.aclose()
            again = await daemon.lifecycle.open(request())
        said, turn = await text_of(again)
        assert (said, turn) == (control(kind, ASKED), 1)
        assert len(await daemon.lifecycle.turns("talk")) == 1
        assert len(prompt_of(ASKED)) <= daemon.evaluated <= len(prompt_of(ASKED)) + 12


async def test_another_request_does_not_take_it_over(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        async with Halted(daemon):
            first = await daemon.lifecycle.open(request())
            await first.events.aclose()
            other = await daemon.lifecycle.open(request(chat("Something else.")))
        said, _ = await text_of(other)
        assert said == control("attention", chat("Something else."))


async def test_while_its_client_is_there_a_request_is_one_of_its_own(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        opened = [await daemon.lifecycle.open(request()) for _ in range(2)]
        turns = {(await text_of(one))[1] for one in opened}
        assert turns == {1, 2}


async def test_a_client_that_left_for_good_stops_its_turn(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_task, "LINGER_S", 0.01)
    async with rig_of("attention", state_dir).daemon() as daemon:
        async with Halted(daemon):
            first = await daemon.lifecycle.open(request())
            await first.events.aclose()
            await asyncio.sleep(0.1)
        while daemon.lifecycle._turns:
            await asyncio.wait(list(daemon.lifecycle._turns))
        assert await daemon.lifecycle.summaries() == []


@pytest.mark.parametrize("ended", [False, True])
async def test_requests_with_the_same_key_are_one_turn(state_dir: Path, ended: bool) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        first = await daemon.lifecycle.open(request(key="k"))
        if ended:
            assert await text_of(first) == (control("hybrid", ASKED), 1)
        again = await daemon.lifecycle.open(request(key="k"))
        assert await text_of(again) == (control("hybrid", ASKED), 1)
        if not ended:
            assert await text_of(first) == (control("hybrid", ASKED), 1)
        assert len(await daemon.lifecycle.turns("talk")) == 1


async def test_a_key_that_comes_with_another_request_is_refused(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await text_of(await daemon.lifecycle.open(request(key="k")))
        with pytest.raises(InvalidRequest) as refusal:
            await daemon.lifecycle.open(request(chat("Something else."), key="k"))
        assert refusal.value.param == "Idempotency-Key"
        await text_of(await daemon.lifecycle.open(request(chat("Something else."), key="l")))


async def test_a_key_of_a_request_that_was_refused_can_be_used_again(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir, n_ctx=600)
    async with rig.daemon() as daemon:
        with pytest.raises(InvalidRequest):
            await daemon.lifecycle.open(request(chat("x" * 900), key="k"))
        async with asyncio.timeout(20):
            assert (await text_of(await daemon.lifecycle.open(request(key="k"))))[1] == 1


async def test_a_key_brings_back_nothing_of_a_session_that_was_removed(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await text_of(await daemon.lifecycle.open(request(key="k")))
        await daemon.lifecycle.delete("talk")
        await text_of(await daemon.lifecycle.open(request(key="k")))
        assert len(await daemon.lifecycle.turns("talk")) == 1


async def test_a_key_that_comes_twice_before_the_first_is_admitted_is_one_turn(
    state_dir: Path,
) -> None:
    long = chat("x" * 25_000)
    async with rig_of("attention", state_dir).daemon() as daemon:
        opened = await asyncio.gather(
            *(daemon.lifecycle.open(request(long, key="k")) for _ in range(3))
        )
        assert {(await text_of(one))[1] for one in opened} == {1}
        assert len(await daemon.lifecycle.turns("talk")) == 1
