"""Another name, and nothing else; a pin, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sessiond.errors import Conflict, InvalidRequest, LedgerError, SessionNotFound
from sessiond.sessions.journal import Journal
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import read_chat
from sessiond.sessions.turn import SessionChange, SessionRef, TurnRequest
from tests.rig import Daemon
from tests.sessions.files import everything
from tests.sessions.kinds import CONTRASTS, KINDS, chat, rig_of
from tests.sessions.talk import Talk

RENAMED = SessionChange(name="new")
each_kind = pytest.mark.parametrize("kind", KINDS)


def record(daemon: Daemon, name: str) -> dict[str, Any]:
    found: SessionRecord = daemon.lifecycle._register[name]
    return {name: getattr(found, name) for name in SessionRecord.__slots__ if name != "name"}


@each_kind
@pytest.mark.parametrize("between", ["nothing", "park", "restart"])
async def test_it_goes_on_where_it_was(state_dir: Path, kind: str, between: str) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        if between == "park":
            await daemon.lifecycle.park("talk")
        before = record(daemon, "talk")
        renamed = await daemon.lifecycle.update("talk", RENAMED)
        assert (renamed.name, renamed.turns) == ("new", 2)
        assert record(daemon, "new") == before
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.summary("talk")
        if between != "restart":
            await _goes_on(daemon, talk)
    if between == "restart":
        async with rig.daemon() as daemon:
            assert record(daemon, "new") == before
            await _goes_on(daemon, talk)


async def _goes_on(daemon: Daemon, talk: Talk) -> None:
    standing, talk.session = talk.standing, "new"
    report = (await talk.say(daemon, "Still you?")).report
    assert (report.session, report.turn, report.cached_tokens) == ("new", 3, standing)


async def test_the_old_name_begins_a_new_session(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 2)
        await daemon.lifecycle.update("talk", RENAMED)
        report = (await talk.say(daemon, "And?")).report
        assert (report.session, report.turn) == ("talk", 1)
        assert len(await daemon.lifecycle.turns("new")) == 2


async def test_a_retry_under_the_old_name_is_a_turn_of_its_own(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        ref = SessionRef("talk", named=True)
        asked = TurnRequest(ref, read_chat(chat("Hi")), idempotency_key="once", response_id="r1")
        for name, turns in (("talk", 1), ("new", 1)):
            opened = await daemon.lifecycle.open(asked)
            async for _ in opened.events:
                pass
            if name == "talk":
                await daemon.lifecycle.update("talk", RENAMED)
                found = await daemon.lifecycle.response("r1")
                assert (found.session, found.turn) == ("new", 1)
            assert len(await daemon.lifecycle.turns(name if name == "new" else "new")) == turns
        assert (await daemon.lifecycle.summary("talk")).turns == 1


async def test_a_taken_name_or_one_in_use_changes_nothing(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        await daemon.lifecycle.create("new", SessionChange())
        await daemon.lifecycle.park("talk")
        before = everything(state_dir)
        with pytest.raises(Conflict, match="'new' already"):
            await daemon.lifecycle.update("talk", SessionChange("fork", name="new", pinned=True))
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.update("nobody", SessionChange(name="other"))
        with pytest.raises(InvalidRequest):
            await daemon.lifecycle.update("talk", SessionChange(None, ("(",), name="other"))
        assert everything(state_dir) == before
        opened = await daemon.open("fresh", chat("Hi"), max_tokens=40, ignore_eos=True)
        await anext(opened.events)
        with pytest.raises(Conflict):
            await daemon.lifecycle.update("talk", SessionChange(name="fresh"))
        async for _ in opened.events:
            pass


async def test_a_session_that_runs_keeps_its_name(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 1)
        asked = [*talk.messages, {"role": "user", "content": "Go on."}]
        opened = await daemon.open("talk", asked, max_tokens=300, ignore_eos=True)
        with pytest.raises(Conflict, match="running"):
            await daemon.lifecycle.update("talk", RENAMED)
        async for _ in opened.events:
            pass
        assert (await daemon.lifecycle.update("talk", RENAMED)).turns == 2


async def test_its_own_name_is_no_other(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.lifecycle.create("talk", SessionChange())
        same = await daemon.lifecycle.update("talk", SessionChange("fork", name="talk"))
        assert (same.name, same.policy) == ("talk", "fork")


async def test_all_of_a_change_comes_together(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await daemon.lifecycle.create("talk", SessionChange())
        change = SessionChange("fork", ("clock",), "new", pinned=True)
        await daemon.lifecycle.update("talk", change)
    async with rig.daemon() as daemon:
        found = await daemon.lifecycle.summary("new")
        assert (found.policy, found.pinned_front, found.pinned) == ("fork", ("clock",), True)


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_a_ledger_that_refuses_leaves_the_old_name(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 1)

        def fail(self: Journal, session: SessionRecord, fields: object) -> None:
            raise LedgerError("No room.")

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "update", fail)
            with pytest.raises(LedgerError):
                await daemon.lifecycle.update("talk", RENAMED)
        assert (await talk.say(daemon, "And?")).report.turn == 2
        assert (await daemon.lifecycle.update("talk", RENAMED)).turns == 2


async def test_changes_at_once_all_hold(state_dir: Path) -> None:
    """A change that was asked for under the old name is made, or is told that there is none."""
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await daemon.lifecycle.create("talk", SessionChange())
        update = daemon.lifecycle.update
        came = await asyncio.gather(
            update("talk", SessionChange(pinned=True)),
            update("talk", RENAMED),
            update("talk", SessionChange("fork")),
            daemon.lifecycle.create("new", SessionChange()),
            return_exceptions=True,
        )
        assert isinstance(came[-1], Conflict)
        assert {type(one) for one in came[:-1]} <= {type(came[1]), SessionNotFound}
        kept = record(daemon, "new")
        assert len(daemon.lifecycle._register) == 1
    async with rig.daemon() as daemon:
        assert record(daemon, "new") == kept


async def test_a_pin_is_kept(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        before = record(daemon, "talk")
        assert (await daemon.lifecycle.update("talk", SessionChange(pinned=True))).pinned
        assert record(daemon, "talk") == before | {"pinned": True}
    async with rig.daemon() as daemon:
        assert (await daemon.lifecycle.summary("talk")).pinned
        unpinned = await daemon.lifecycle.update("talk", SessionChange(pinned=False))
        assert not unpinned.pinned
        assert record(daemon, "talk") == before
