"""State that cannot be cut: saved in one piece, at park and stop only, used as far as it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig import Rig
from tests.sessions.kinds import CONTRASTS, KINDS, chat, rig_of
from tests.sessions.talk import Talk, checked

each_kind = pytest.mark.parametrize("kind", KINDS)
contrasts = pytest.mark.parametrize("kind", CONTRASTS)


def whole(kind: str, directory: Path, **options: int) -> Rig:
    rig = rig_of(kind, directory, **options)
    rig.whole = True
    return rig


@each_kind
async def test_it_is_saved_at_a_stop_and_used_after_it(state_dir: Path, kind: str) -> None:
    rig, talk = whole(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        assert (await daemon.lifecycle.health()).codec == "whole"
        await daemon.machine.saver.save_all()
        assert daemon.machine.store.usage().bytes == 0
    async with rig.daemon() as daemon:
        usage = daemon.machine.store.usage()
        assert (usage.blocks, usage.snapshots) == (0, 1)
        standing = talk.standing
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.cached_tokens, report.miss) == ("disk", standing, None)
        assert report.restored_tokens == standing


@contrasts
async def test_it_is_saved_at_a_park(state_dir: Path, kind: str) -> None:
    rig, talk = whole(kind, state_dir), Talk(kind)
    async with rig.daemon(kill=True) as daemon:
        await talk.turns(daemon, 2)
        assert (await daemon.lifecycle.park("talk")).state == "disk"
    async with rig.daemon(kill=True) as daemon:
        standing = talk.standing
        resumed = await daemon.lifecycle.resume("talk")
        assert (resumed.source, resumed.restored_tokens) == ("disk", standing)
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.cached_tokens) == ("resident", standing)


@each_kind
@pytest.mark.parametrize("stop", [False, True])
async def test_it_is_never_cut(state_dir: Path, kind: str, stop: bool) -> None:
    """Going back evaluates everything: what is resident or on disk goes too far."""
    rig, talk = whole(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        if not stop:
            report = (await talk.copy(1).say(daemon, "Question 2?")).report
    if stop:
        async with rig.daemon() as daemon:
            report = (await talk.copy(1).say(daemon, "Question 2?")).report
    assert report.cached_tokens == 0
    assert report.miss is not None
    assert report.miss.cause in ("no_snapshot", "not_saved") if stop else ("no_snapshot",)


@each_kind
async def test_lines_that_displace_each_other_are_found_again(state_dir: Path, kind: str) -> None:
    talks = [Talk(kind, session=name) for name in ("a", "b")]
    async with whole(kind, state_dir, lines=1).daemon() as daemon:
        for _ in range(2):
            for talk in talks:
                standing = talk.standing if talk.replies else 0
                report = (await talk.say(daemon, f"Next, {talk.session}?")).report
                assert (report.cached_tokens, report.miss) == (standing, None)


@contrasts
async def test_a_kill_costs_prefill_only(state_dir: Path, kind: str) -> None:
    rig, talk = whole(kind, state_dir), Talk(kind)
    async with rig.daemon(kill=True) as daemon:
        await talk.turns(daemon, 2)
    async with rig.daemon(kill=True) as daemon:
        report = (await talk.say(daemon, "And now?")).report
        assert report.miss is not None
        assert (report.cached_tokens, report.miss.cause) == (0, "not_saved")


@each_kind
async def test_blocks_of_an_earlier_verdict_are_not_used(state_dir: Path, kind: str) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
    rig.whole = True
    async with rig.daemon() as daemon:
        assert (await talk.say(daemon, "And now?")).report.cached_tokens == 0
    rig.whole = False
    async with rig.daemon() as daemon:
        standing = talk.standing
        report = (await talk.say(daemon, "And with blocks again?")).report
        assert (report.cached_tokens, report.miss) == (standing, None)
        assert (await checked(daemon, kind, "other", chat("Hello?"))).report.miss is None
