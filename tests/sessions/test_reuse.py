"""What a turn evaluates: new tokens + 1, for every memory kind, whatever lies between two turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pytest

from sessiond.engine.memory import common_prefix
from sessiond.sessions import saver
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.sessions.turn import TurnReport
from tests.rig import Daemon
from tests.sessions.kinds import KINDS, MEMORIES, chat, prompt_of, rig_of
from tests.sessions.talk import BETWEEN, Between, Talk, checked, interrupted

pytestmark = pytest.mark.parametrize("kind", KINDS)
everywhere = pytest.mark.parametrize("between", BETWEEN)
stopped = pytest.mark.parametrize("between", ["nothing", "stop"])
HEADER = 2
"""Tokens that the template puts between the end of the front and the words of a message."""
Prepare = Callable[[Daemon, Talk], Awaitable[object]]


@dataclass
class Scene:
    """A talk, and the daemon that serves its next turn."""

    kind: str
    between: Between
    talk: Talk
    daemon: Daemon

    @property
    def source(self) -> str:
        """Of a recurrent model everything is in the ring as long as the daemon runs."""
        in_ring = self.kind == "recurrent" and self.between == "park"
        return "resident" if self.between == "nothing" or in_ring else "disk"

    @property
    def memory_is_cut_anywhere(self) -> bool:
        return not MEMORIES[self.kind].needs_snapshot


@asynccontextmanager
async def scene(
    directory: Path, kind: str, between: Between, prepare: Prepare
) -> AsyncGenerator[Scene, None]:
    rig, talk = rig_of(kind, directory), Talk(kind)
    daemon = Daemon(rig)
    await daemon.start()
    await prepare(daemon, talk)
    daemon = await interrupted(rig, daemon, between, talk.session)
    try:
        yield Scene(kind, between, talk, daemon)
    finally:
        await daemon.kill()


async def three_turns(daemon: Daemon, talk: Talk) -> None:
    await talk.turns(daemon, 3)


def assert_reused(scene: Scene, report: TurnReport, evaluated: int) -> None:
    assert report.prefilled_tokens == evaluated
    assert report.miss is None
    assert report.source == scene.source


@everywhere
async def test_an_appended_turn_evaluates_what_is_new(
    state_dir: Path, kind: str, between: Between
) -> None:
    async with scene(state_dir, kind, between, three_turns) as at:
        standing = at.talk.standing
        report = (await at.talk.say(at.daemon, "And then?")).report
        assert_reused(at, report, report.prompt_tokens - standing)
        assert report.restored_tokens == (0 if at.source == "resident" else standing)
        assert (report.turn, report.line) == (4, "main")


@stopped
async def test_an_identical_request_evaluates_one_token(
    state_dir: Path, kind: str, between: Between
) -> None:
    async with scene(state_dir, kind, between, three_turns) as at:
        first = at.talk.replies[-1]
        again = await at.talk.copy(-1).say(at.daemon, "Question 3?")
        assert_reused(at, again.report, 1)
        assert again.text == first.text
        assert again.report.turn == 4


@stopped
async def test_an_edited_last_message_lands_on_the_turn_before(
    state_dir: Path, kind: str, between: Between
) -> None:
    async with scene(state_dir, kind, between, three_turns) as at:
        edited = at.talk.copy(-1)
        standing = edited.standing
        report = (await edited.say(at.daemon, "Something else entirely?")).report
        assert report.prefilled_tokens <= report.prompt_tokens - standing
        assert report.miss is None
        if MEMORIES[kind].recurrent:
            assert report.prefilled_tokens == report.prompt_tokens - standing


@stopped
async def test_an_older_line_is_gone_on_with(state_dir: Path, kind: str, between: Between) -> None:
    async def two_lines(daemon: Daemon, talk: Talk) -> None:
        await talk.turns(daemon, 3)
        await talk.copy(2).say(daemon, "A side line?")

    async with scene(state_dir, kind, between, two_lines) as at:
        standing = at.talk.standing
        report = (await at.talk.say(at.daemon, "Back to the main line?")).report
        assert_reused(at, report, report.prompt_tokens - standing)
        assert report.turn == 5


@stopped
async def test_a_shorter_line_can_be_gone_back_on_beside_a_longer_one(
    state_dir: Path, kind: str, between: Between
) -> None:
    """1. Seven turns. 2. Back to the fourth, and two turns there. 3. Back one turn there. Result:
    only what is said anew is evaluated, though the other line's last turns all lie further.
    """

    async def two_lines(daemon: Daemon, talk: Talk) -> None:
        await talk.turns(daemon, 7)
        shorter.append(talk.copy(4))
        await shorter[0].turns(daemon, 2)

    shorter: list[Talk] = []
    async with scene(state_dir, kind, between, two_lines) as at:
        edited = shorter[0].copy(-1)
        standing = edited.standing
        report = (await edited.say(at.daemon, "Something else entirely?")).report
        assert report.prefilled_tokens <= report.prompt_tokens - standing
        assert report.miss is None


async def test_what_the_engine_still_has_is_landed_on_though_a_line_could_be_gone_on_with(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Three turns, the third asked again, a fourth. 2. The fourth again, at once: a line that
    ends before it is there twice, and what was captured at its last token is in the engine.
    """
    collect = Checkpoints.collect

    async def when_needed(checkpoints: Checkpoints, *, patient: bool = False) -> bool:
        return not patient and await collect(checkpoints)

    monkeypatch.setattr(saver, "COLLECT_S", inf)
    monkeypatch.setattr(Checkpoints, "collect", when_needed)
    async with scene(state_dir, kind, "nothing", three_turns) as at:
        again = at.talk.copy(-1)
        await again.say(at.daemon, "Question 3?")
        await again.turns(at.daemon, 1)
        last = await again.copy(-1).say(at.daemon, "Question 4?")
        assert_reused(at, last.report, 1)


@stopped
async def test_another_session_shares_the_front(
    state_dir: Path, kind: str, between: Between
) -> None:
    async with scene(state_dir, kind, between, three_turns) as at:
        asked = chat("An unrelated question?")
        shared = common_prefix(prompt_of(asked), prompt_of(at.talk.messages))
        report = (await checked(at.daemon, kind, "other", asked)).report
        reusable = 0 if at.memory_is_cut_anywhere else HEADER
        assert shared - reusable <= report.cached_tokens <= shared
        assert report.miss is None
        cells = "resident" if kind == "recurrent" else "fork"
        assert report.source == (cells if between == "nothing" else "disk")


@stopped
async def test_another_session_that_asks_the_same_evaluates_one_token(
    state_dir: Path, kind: str, between: Between
) -> None:
    async def one_turn(daemon: Daemon, talk: Talk) -> None:
        await talk.turns(daemon, 1)

    async with scene(state_dir, kind, between, one_turn) as at:
        report = (await checked(at.daemon, kind, "other", chat("Question 1?"))).report
        assert report.prefilled_tokens == 1


@stopped
async def test_raw_completions_are_gone_on_with(
    state_dir: Path, kind: str, between: Between
) -> None:
    prompt = "Once upon a time " * 20

    async def one_completion(daemon: Daemon, talk: Talk) -> None:
        talk.replies.append(await checked(daemon, kind, talk.session, prompt))

    async with scene(state_dir, kind, between, one_completion) as at:
        standing = at.talk.standing
        longer = prompt + at.talk.replies[0].text + " and then"
        report = (await checked(at.daemon, kind, at.talk.session, longer)).report
        assert_reused(at, report, report.prompt_tokens - standing)
        again = (await checked(at.daemon, kind, at.talk.session, longer)).report
        assert again.prefilled_tokens == 1
