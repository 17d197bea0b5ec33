"""What is listed of many sessions: the truth, and read again only where something has changed."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sessiond.sessions import overview, register
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.overview import AT_ONCE
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.turn import SessionChange, SessionSummary
from tests.rig import Rig
from tests.sessions.kinds import chat, rig_of
from tests.sessions.talk import Talk
from tests.sessions.test_unsaved import unwritable
from tests.sessions.turns import make_turn


def filled(directory: Path, sessions: int) -> Rig:
    """A ledger with many sessions of two turns each, of 3,000 tokens."""
    ledger = Ledger(directory / "ledger.sqlite")
    ledger._connection.execute("PRAGMA synchronous = OFF")
    turns = [
        make_turn(1, prompt=range(1500)),
        make_turn(2, 1, kept=1501, prompt=range(1500)),
    ]
    for number in range(sessions):
        record = SessionRecord.new(f"s{number}", float(number))
        for turn in turns:
            ledger.commit(record, turn)
    ledger.close()
    return rig_of("attention", directory)


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "LOOK_S", 1e9)


def facts(summary: SessionSummary) -> SessionSummary:
    """Without what is estimated from how fast the machine was found to be."""
    return replace(summary, back_in_ms=0.0)


async def test_a_list_of_many_sessions_looks_up_a_few_and_each_once(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result: all is told from the first list on; the next lists look up the others."""
    async with filled(state_dir, 100).daemon() as daemon:
        looked = Mock(wraps=daemon.machine.store.lookup)
        monkeypatch.setattr(daemon.machine.store, "lookup", looked)
        loaded = Mock(wraps=daemon.ledger.load)
        monkeypatch.setattr(daemon.ledger, "load", loaded)
        first = await daemon.lifecycle.summaries()
        assert [s.name for s in first] == [f"s{n}" for n in reversed(range(100))]
        told = {(s.turns, s.lines, s.tokens, s.state, s.reason, s.hit_rate) for s in first}
        assert told == {(2, 1, 3002, "ledger", "settings changed", 7 / 12)}
        for count in (*range(AT_ONCE, 100, AT_ONCE), 100, 100):
            assert (looked.call_count, loaded.call_count) == (count, count)
            assert await daemon.lifecycle.summaries() == first
        await daemon.say("s7", chat("Hello?"), max_tokens=3)
        listed = await daemon.lifecycle.summaries()
        assert (listed[0].name, listed[0].turns, listed[0].lines) == ("s7", 3, 2)
        assert [facts(s) for s in listed[1:]] == [facts(s) for s in first if s.name != "s7"]


async def test_whoever_changed_is_looked_up_first(state_dir: Path) -> None:
    """100 sessions, all looked up but the oldest ones. Result: a turn in one of those is seen."""
    async with filled(state_dir, 100).daemon() as daemon:
        await daemon.lifecycle.summaries()
        for name in ("s0", "s1"):
            await daemon.say(name, chat("Hello?"), max_tokens=3)
        await daemon.lifecycle.park("s0")
        listed = {s.name: s for s in await daemon.lifecycle.summaries()}
        assert (listed["s0"].turns, listed["s0"].lines) == (3, 2)
        assert (listed["s1"].turns, listed["s1"].lines) == (3, 2)


async def test_without_a_look_the_state_is_expected_where_the_store_has_room(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten sessions of four files each, two looked up. Result: as many as the store has files for
    are expected on disk, the latest first; looked up they are all there.
    """
    async with rig_of("attention", state_dir).daemon() as daemon:
        for number in range(10):
            await daemon.say(f"s{number}", chat(f"I am {number}.", front="f" * 700), max_tokens=3)
        await daemon.machine.saver.save_all()
        for number in range(10):
            await daemon.lifecycle.park(f"s{number}")
    async with rig_of("attention", state_dir).daemon() as daemon:
        monkeypatch.setattr(overview, "AT_ONCE", 2)
        first = await daemon.lifecycle.summaries()
        files = daemon.machine.store.usage().blocks
        assert [s.state for s in first] == ["disk"] * (files // 3) + ["ledger"] * (10 - files // 3)
        for _ in range(4):
            last = await daemon.lifecycle.summaries()
        assert {s.state for s in last} == {"disk"}


async def test_outlines_are_what_the_trees_say(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 2)
        await daemon.say("talk", chat("Something else."), max_tokens=3)
        tree = await daemon.lifecycle._register.tree("talk")
        (found,) = (await daemon.lifecycle._register.outlines()).values()
        leaf = tree.main_line(0)
        assert leaf is not None
        assert found.end is not None
        assert (found.turns, found.lines, found.end.number) == (3, 2, leaf)
        assert found.end.length == tree.length(leaf)
        await daemon.lifecycle.delete("talk")
        assert await daemon.lifecycle._register.outlines() == {}


async def test_what_changes_is_seen(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 1)
        before = await daemon.lifecycle.summary("talk")
        assert (before.state, before.bytes, before.policy) == ("resident", 0, "append-only")
        await daemon.machine.saver.save_all()
        saved = await daemon.lifecycle.summary("talk")
        assert saved == replace(before, bytes=saved.bytes)
        assert saved.bytes > 0
        await daemon.lifecycle.update("talk", SessionChange("fork"))
        assert (await daemon.lifecycle.summary("talk")).policy == "fork"
        await daemon.lifecycle.park("talk")
        assert (await daemon.lifecycle.summary("talk")).state == "disk"
        await talk.turns(daemon, 1)
        assert (await daemon.lifecycle.summary("talk")).turns == 2
        await daemon.lifecycle.delete("talk")
        assert await daemon.lifecycle.summaries() == []


async def test_agents_and_groups_are_told(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.say("house:kitchen", chat("Hi"), named=False)
        await daemon.say("plain", chat("Hi"))
        listed = {s.name: (s.group, s.policy) for s in await daemon.lifecycle.summaries()}
        assert listed == {"house:kitchen": ("house", "fork"), "plain": (None, "append-only")}


async def test_only_recent_trees_stay_in_memory(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of turns that are not in the ledger yet stay whatever happens."""
    monkeypatch.setattr(register, "KEPT_TREES", 3)
    async with rig_of("attention", state_dir).daemon() as daemon:
        trees = daemon.lifecycle._register._trees
        talks = [Talk("attention", session=f"s{n}") for n in range(6)]
        with unwritable():
            await talks[0].turns(daemon, 2)
            for talk in talks[1:]:
                await talk.turns(daemon, 1)
            assert set(trees) == {f"s{n}" for n in range(6)}
        for talk in talks:
            await talk.turns(daemon, 1)
        assert list(trees) == ["s3", "s4", "s5"]
        await daemon.lifecycle.summaries()
        assert list(trees) == ["s3", "s4", "s5"]
        assert len(await daemon.lifecycle.turns("s0")) == 3
        assert list(trees) == ["s4", "s5", "s0"]
        for talk in talks:
            assert (await talk.say(daemon, "Still there?")).report.miss is None


_PLAIN = logging.makeLogRecord({})


async def test_a_turn_is_reported_once_in_the_log_and_names_nobody(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sessiond.sessions")
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        talk = Talk("hybrid", session="secret-name")
        await talk.say(daemon, "secret-words")
        record = daemon.lifecycle._register["secret-name"]
        await talk.say(daemon, "secret-words")
        report = talk.replies[-1].report
    lines = [r for r in caplog.records if r.getMessage() == "turn"]
    assert len(lines) == 2
    told = {key: value for key, value in vars(lines[1]).items() if key not in vars(_PLAIN)}
    assert told == {
        "message": "turn",
        "session": record.id[:8],
        "turn": 2,
        "source": "resident",
        "cached": report.cached_tokens,
        "restored": 0,
        "prefilled": report.prefilled_tokens,
        "completion": report.completion_tokens,
        "ttft_ms": round(report.ttft_ms, 1),
        "restore_ms": round(report.restore_ms, 1),
        "miss": "none",
        "finish": report.finish_reason,
        "saved": True,
    }
    assert "secret" not in caplog.text


async def test_what_has_not_changed_is_not_put_together_again(state_dir: Path) -> None:
    async with filled(state_dir, 100).daemon() as daemon:
        for _ in range(1 + 100 // AT_ONCE):
            last = await daemon.lifecycle.summaries()
        again = await daemon.lifecycle.summaries()
        assert all(one is other for one, other in zip(last, again, strict=True))
        await daemon.lifecycle.update("s7", SessionChange("append-only"))
        changed = await daemon.lifecycle.summaries()
        assert [new.name for old, new in zip(again, changed, strict=True) if new is not old] == [
            "s7"
        ]
        await daemon.lifecycle.delete("s7")
        assert "s7" not in {s.name for s in await daemon.lifecycle.summaries()}


async def test_when_looking_up_takes_too_long_only_lines_in_the_context_are_looked_up(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result: all sessions are told nevertheless."""
    monkeypatch.setattr(overview, "LOOK_S", -1.0)
    async with filled(state_dir, 100).daemon() as daemon:
        await daemon.say("s3", chat("Hello?"), max_tokens=3)
        loaded = Mock(wraps=daemon.ledger.load)
        monkeypatch.setattr(daemon.ledger, "load", loaded)
        listed = await daemon.lifecycle.summaries()
        assert (len(listed), loaded.call_count) == (100, 0)
        assert (listed[0].name, listed[0].turns) == ("s3", 3)
        assert {s.turns for s in listed[1:]} == {2}
