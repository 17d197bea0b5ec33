"""More lines than there is room for: idle ones are parked, and nobody else notices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.engine.active import RESERVE_TOKENS
from sessiond.errors import PoolFull
from tests.rig import Daemon
from tests.sessions.kinds import CONTRASTS, KINDS, MEMORIES, chat, prompt_of, rig_of
from tests.sessions.talk import Talk, checked

each_kind = pytest.mark.parametrize("kind", KINDS)
with_cells = pytest.mark.parametrize("kind", [k for k in KINDS if MEMORIES[k].has_blocks])


async def resident(daemon: Daemon) -> set[str]:
    """The sessions that have lines in the context."""
    ids = {record.id: record.name for record in daemon.lifecycle._register.records}
    views = await daemon.machine.engine.views()
    return {ids[v.owner.session] for v in views if v.owner is not None and len(v.tokens)}


@pytest.mark.parametrize(
    ("kind", "lines"), [*((kind, 1) for kind in KINDS), *((kind, 2) for kind in CONTRASTS)]
)
async def test_more_sessions_than_lines(state_dir: Path, kind: str, lines: int) -> None:
    """Three talks in turn, each parked when the others need its place, each found again."""
    talks = [Talk(kind, session=name) for name in ("a", "b", "c")]
    for number, talk in enumerate(talks):
        talk.messages[0]["content"] += f" You are number {number}."
    async with rig_of(kind, state_dir, lines=lines).daemon() as daemon:
        for _ in range(3):
            for talk in talks:
                standing = talk.standing if talk.replies else 0
                report = (await talk.say(daemon, "Next?")).report
                assert report.miss is None
                assert report.cached_tokens >= standing
        assert await resident(daemon) == {"c"} if lines == 1 else {"b", "c"}


@each_kind
async def test_the_only_line_is_rewound_in_place(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir, lines=1)
    async with rig.daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 3)
        for _ in range(2):
            again = (await talk.copy(2).say(daemon, "Question 3?")).report
            assert (again.prefilled_tokens, again.miss) == (1, None)
        standing = talk.copy(2).standing
        edited = (await talk.copy(2).say(daemon, "Something else?")).report
        assert edited.cached_tokens >= standing
        assert (await talk.say(daemon, "Back again?")).report.miss is None


@with_cells
async def test_idle_lines_are_parked_for_their_cells(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir, lines=4, n_ctx=800)
    talks = [Talk(kind, session=name) for name in ("a", "b", "c")]
    for number, talk in enumerate(talks):
        talk.messages[0]["content"] = f"Number {number}. " * 25
    async with rig.daemon() as daemon:
        for talk in talks:
            await talk.say(daemon, "Hello?")
        in_context = await resident(daemon)
        assert "c" in in_context
        assert len(in_context) == 2
        for talk in talks:
            standing = talk.standing
            report = (await talk.say(daemon, "Are you there?")).report
            assert (report.miss, report.cached_tokens) == (None, standing)


@with_cells
async def test_a_prompt_alone_may_fill_the_pool(state_dir: Path, kind: str) -> None:
    asked = chat("Hello?", front="x" * 500)
    rig = rig_of(kind, state_dir, n_ctx=len(prompt_of(asked)))
    async with rig.daemon() as daemon:
        await Talk(kind, session="idle").turns(daemon, 1)
        report = (await checked(daemon, kind, "full", asked, max_tokens=1)).report
        assert report.finish_reason == "length"
        assert await resident(daemon) == {"full"}


async def test_an_unlimited_reply_reserves_only_a_part_of_the_pool(state_dir: Path) -> None:
    """`max_tokens` unset is no reason to park everybody."""
    rig = rig_of("attention", state_dir, n_ctx=3 * RESERVE_TOKENS)
    async with rig.daemon() as daemon:
        for name in ("a", "b", "c"):
            await daemon.say(name, chat(f"Hello from {name}?"), max_tokens=None)
        assert await resident(daemon) == {"a", "b", "c"}


@with_cells
async def test_a_reply_that_runs_out_of_cells_parks_an_idle_line(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond.sessions.lander.RESERVE_TOKENS", 0)
    monkeypatch.setattr("sessiond.engine.active.RESERVE_TOKENS", 0)
    idle, asked = Talk(kind, session="idle"), chat("Go on.", front="Another front. " * 20)
    async with rig_of(kind, state_dir, n_ctx=800).daemon() as daemon:
        await idle.turns(daemon, 1)
        opened = await daemon.open("long", asked, max_tokens=400, ignore_eos=True)
        *_, finished = [event async for event in opened.events]
        assert finished.report.finish_reason == "length"
        assert finished.report.completion_tokens == 400
        assert await resident(daemon) == {"long"}
        assert (await idle.say(daemon, "Are you there?")).report.miss is None


@with_cells
async def test_a_reply_ends_when_there_is_nothing_left_to_park(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir, n_ctx=600)
    rig.limit = 2000
    async with rig.daemon() as daemon:
        await Talk(kind, session="idle").turns(daemon, 1)
        asked = chat("Go on.", front="Another front. " * 20)
        opened = await daemon.open("long", asked, max_tokens=1000, ignore_eos=True)
        *_, finished = [event async for event in opened.events]
        report = finished.report
        assert (report.finish_reason, report.saved) == ("length", True)
        assert report.prompt_tokens + report.completion_tokens == 601
        with pytest.raises(PoolFull):
            await daemon.say("too long", chat("Hi", front="y" * 700))
        assert (await checked(daemon, kind, "after", chat("Hello?"))).report.saved
        assert {s.name for s in await daemon.lifecycle.summaries()} == {"idle", "long", "after"}


async def test_a_line_that_was_idle_for_long_is_parked(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond.sessions.chores._LOOK_S", 0.01)
    rig = rig_of("hybrid", state_dir)
    rig.limits = replace(rig.limits, park=0.05)
    async with rig.daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 1)
        assert await resident(daemon) == {"talk"}
        for _ in range(500):
            if not await resident(daemon):
                break
            await asyncio.sleep(0.01)
        assert await resident(daemon) == set()
        report = (await talk.say(daemon, "Are you there?")).report
        assert (report.source, report.miss) == ("disk", None)
