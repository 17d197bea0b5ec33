"""The disk of ledger, index and blocks is full: people can go on, and nothing is lost later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sessions.kinds import rig_of
from tests.sessions.talk import Talk
from tests.store.mounts import filled, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 8) as mount:
        yield mount


async def test_a_full_disk_costs_nothing_that_was_acknowledged(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    1. Two turns. 2. The disk is full; three more turns. 3. There is space again; one more turn.
    4. kill -9, and a start.
    Result: all answers are right; `saved` is true to the letter; health and log say where, how much
    and what to do, once; every turn that was acknowledged at the end is there.
    """
    caplog.set_level(logging.INFO)
    rig, talk = rig_of("hybrid", disk), Talk("hybrid")
    async with rig.daemon(kill=True) as daemon:
        await talk.turns(daemon, 2)
        await daemon.machine.saver.save_all()
        with filled(disk):
            await talk.turns(daemon, 3)
            await daemon.machine.saver.save_all()
            saved = [reply.report.saved for reply in talk.replies]
            assert saved[:2] == [True, True]
            waiting = saved.count(False)
            assert waiting > 0
            health = await daemon.lifecycle.health()
            assert health.unsaved_turns == waiting
            assert "only in memory" in health.detail
            assert f"free in {disk}. Free some space there." in health.detail
            assert "Model state is not saved" in health.detail
            (listed,) = await daemon.lifecycle.summaries()
            assert not listed.saved
        await talk.turns(daemon, 1)
        await daemon.machine.saver.save_all()
        assert talk.replies[-1].report.saved
        health = await daemon.lifecycle.health()
        assert (health.unsaved_turns, health.detail) == (0, "")
        daemon.machine.store.check_integrity()
    said = [record.getMessage() for record in caplog.records]
    for sentence in ("only in memory", "Turns that waited", "saved again"):
        assert len([one for one in said if sentence in one]) == 1
    assert len([one for one in said if "Model state is not saved" in one]) in (1, 2), (
        "once for the index and once for the files"
    )
    async with rig.daemon(kill=True) as daemon:
        transcript = await daemon.lifecycle.transcript("talk")
        assert [m.content for m in transcript] == [m["content"] for m in talk.messages]
        assert daemon.ledger.check_integrity() == 6
        report = (await talk.say(daemon, "Still there?")).report
        assert report.source == "disk"
