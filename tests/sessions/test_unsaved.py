"""When the ledger cannot be written, answering goes on, and nothing is lost once it can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessiond.errors import LedgerError
from sessiond.sessions.ledger import Ledger
from tests.sessions.kinds import rig_of
from tests.sessions.talk import Talk


@contextmanager
def unwritable() -> Iterator[None]:
    def refuse(*_arguments: object) -> None:
        raise LedgerError("The disk is full.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "commit", refuse)
        yield


async def test_turns_wait_say_so_and_are_saved_in_order(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid", state_dir), Talk("hybrid")
    new = Talk("hybrid", session="new")
    async with rig.daemon(kill=True) as daemon:
        await talk.turns(daemon, 1)
        assert talk.replies[0].report.saved
        with unwritable():
            await talk.turns(daemon, 2)
            await new.turns(daemon, 1)
            assert [reply.report.saved for reply in talk.replies] == [True, False, False]
            health = await daemon.lifecycle.health()
            assert health.unsaved_turns == 3
            assert health.detail == "3 turns are not saved, only in memory: The disk is full."
            assert health.status == "ok"
            listed = {s.name: s.saved for s in await daemon.lifecycle.summaries()}
            assert listed == {"talk": False, "new": False}
            assert len(await daemon.lifecycle.turns("new")) == 1
        await talk.turns(daemon, 1)
        assert talk.replies[-1].report.saved
        health = await daemon.lifecycle.health()
        assert (health.unsaved_turns, health.detail) == (0, "")
        assert all(summary.saved for summary in await daemon.lifecycle.summaries())
    async with rig.daemon(kill=True) as daemon:
        transcript = await daemon.lifecycle.transcript("talk")
        assert [m.content for m in transcript] == [m["content"] for m in talk.messages]
        assert [t.parent for t in await daemon.lifecycle.turns("talk")] == [None, 1, 2, 3]
        await talk.turns(daemon, 1)
        await new.turns(daemon, 1)


async def test_a_stop_saves_what_waits(state_dir: Path) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        with unwritable():
            await talk.turns(daemon, 2)
    async with rig.daemon() as daemon:
        assert len(await daemon.lifecycle.turns("talk")) == 2


async def test_what_could_never_be_saved_is_lost_loudly(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    with unwritable():
        async with rig.daemon() as daemon:
            await talk.turns(daemon, 2)
    assert "2 turns are not saved" in caplog.text
    async with rig.daemon() as daemon:
        assert await daemon.lifecycle.summaries() == []


async def test_a_session_that_is_not_in_the_ledger_can_be_removed(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        with unwritable():
            await Talk("attention").turns(daemon, 1)
            await daemon.lifecycle.delete("talk")
        assert await daemon.lifecycle.summaries() == []
        assert (await daemon.lifecycle.health()).unsaved_turns == 0


async def test_after_a_refused_removal_nothing_has_changed(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise LedgerError("The disk is full.")

    async with rig_of("hybrid", state_dir).daemon(kill=True) as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 2)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "delete", refuse)
            with pytest.raises(LedgerError):
                await daemon.lifecycle.delete("talk")
        standing = talk.standing
        report = (await talk.say(daemon, "Still there?")).report
        assert (report.source, report.cached_tokens) == ("resident", standing)
