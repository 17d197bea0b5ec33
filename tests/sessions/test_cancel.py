"""A client that leaves: the engine stops, what was said is kept, the session goes on."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from sessiond.engine.events import Progress
from sessiond.engine.fake import FakeModel
from sessiond.errors import Unavailable
from sessiond.sessions.limits import Limits
from sessiond.sessions.turn import OpenTurn, Spoken
from tests.rig import Daemon
from tests.sessions.kinds import KINDS, Messages, chat, rig_of
from tests.sessions.talk import Talk, checked

each_kind = pytest.mark.parametrize("kind", KINDS)
LONG = 3000
"""Tokens of a reply that ends only because its client leaves."""


async def endless(daemon: Daemon, messages: Messages, name: str = "talk") -> OpenTurn:
    return await daemon.open(name, messages, max_tokens=LONG, ignore_eos=True)


async def talking(daemon: Daemon, messages: Messages, name: str = "talk") -> OpenTurn:
    """A turn that has begun to answer, with letters only, and goes on."""
    model = daemon.machine.engine.model
    assert isinstance(model, FakeModel)
    model.replies.append("abcdefgh" * LONG)
    opened = await daemon.open(name, messages, max_tokens=LONG)
    async for event in opened.events:
        if isinstance(event, Spoken):
            return opened
    raise AssertionError("the turn has ended")


async def quiet(daemon: Daemon) -> None:
    """Until no turn is under way."""
    while daemon.lifecycle._turns:
        await asyncio.wait(list(daemon.lifecycle._turns))


def held(daemon: Daemon, chunks: int) -> threading.Event:
    """After so many chunks the engine waits for the event, in the middle of the next one."""
    context: Any = daemon.context._context
    go, rows, calls = threading.Event(), context.decode_rows, itertools.count()

    def decode_rows(batch: Any) -> None:
        if next(calls) == chunks:
            go.wait()
        rows(batch)

    context.decode_rows = decode_rows
    return go


@each_kind
async def test_leaving_in_the_prefill_leaves_nothing_behind(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        asked = chat("Question?", front="A long front. " * 60)
        left = held(daemon, chunks=3)
        opened = await endless(daemon, asked)
        assert isinstance(await anext(opened.events), Progress)
        await opened.events.aclose()
        left.set()
        await quiet(daemon)
        evaluated = daemon.evaluated
        assert 0 < evaluated <= 4 * 64
        assert await daemon.lifecycle.summaries() == []
        report = (await checked(daemon, kind, "talk", asked)).report
        assert report.turn == 1
        assert report.cached_tokens + report.prefilled_tokens == report.prompt_tokens
        assert report.cached_tokens >= evaluated


@each_kind
async def test_leaving_in_the_reply_keeps_what_was_said(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir)
    async with rig.daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 1)
        asked = [*talk.messages, {"role": "user", "content": "Go on."}]
        opened = await talking(daemon, asked)
        for _ in range(4):
            assert isinstance(await anext(opened.events), Spoken)
        await opened.events.aclose()
        await quiet(daemon)
        first, second = await daemon.lifecycle.turns("talk")
        assert (first.finish_reason, second.finish_reason) == (talk_reason(talk), "cancelled")
        assert 5 <= second.completion_tokens < LONG
        said = (await daemon.lifecycle.transcript("talk"))[-1].content
        edited = await talk.copy().say(daemon, "Something else?")
        assert edited.report.miss is None
    async with rig.daemon() as daemon:
        again = [*asked, {"role": "assistant", "content": said}]
        reply = await checked(daemon, kind, "talk", [*again, {"role": "user", "content": "Why?"}])
        assert reply.report.miss is None
        assert reply.report.cached_tokens >= second.prompt_tokens + second.completion_tokens - 1


def talk_reason(talk: Talk) -> str:
    return talk.replies[-1].report.finish_reason


async def test_leaving_before_anything_was_read_stops_the_turn(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        opened = await endless(daemon, chat("Go on."))
        await opened.events.aclose()
        await quiet(daemon)
        assert daemon.evaluated < LONG
        assert await daemon.lifecycle.summaries() == []


async def test_a_reader_that_is_cancelled_stops_the_turn(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        opened = await endless(daemon, chat("Go on."))

        async def read() -> None:
            async for _ in opened.events:
                pass

        reader = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await quiet(daemon)
        assert daemon.evaluated < LONG


async def test_the_next_in_the_queue_is_served_when_one_leaves(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        running = await talking(daemon, chat("Go on."))
        waiting = asyncio.create_task(checked_alone(daemon, "waiting"))
        await asyncio.sleep(0)
        await running.events.aclose()
        assert await waiting == 1


async def checked_alone(daemon: Daemon, session: str) -> int:
    return (await daemon.say(session, chat("Hello?"))).report.turn


async def test_leaving_in_the_queue_changes_nothing(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir, lines=1).daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 1)
        running = await talking(daemon, chat("Go on."), "running")
        asked = [*talk.messages, {"role": "user", "content": "Wait."}]
        waiting = [await daemon.open("talk", asked), await daemon.open("new", asked)]
        assert (await daemon.lifecycle.health()).queued == 2
        for opened in waiting:
            await opened.events.aclose()
        assert (await daemon.lifecycle.health()).queued == 0
        await running.events.aclose()
        await quiet(daemon)
        assert {s.name: s.turns for s in await daemon.lifecycle.summaries()} == {
            "talk": 1,
            "running": 1,
        }
        await talk.say(daemon, "Wait.")


async def test_a_stop_cuts_a_turn_and_keeps_what_was_said(state_dir: Path) -> None:
    rig = rig_of("recurrent", state_dir)
    rig.limits = Limits(drain=0.05)
    async with rig.daemon() as daemon:
        running = await talking(daemon, chat("Go on."), "running")
        waiting = await daemon.open("waiting", chat("And me?"))
    with pytest.raises(Unavailable, match="sessiond is stopping"):
        [event async for event in running.events]
    with pytest.raises(Unavailable):
        await anext(waiting.events)
    async with rig.daemon() as daemon:
        (turn,) = await daemon.lifecycle.turns("running")
        assert turn.finish_reason == "cancelled"
        assert turn.completion_tokens > 0
        assert [s.name for s in await daemon.lifecycle.summaries()] == ["running"]
