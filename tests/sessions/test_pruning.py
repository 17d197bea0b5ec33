"""What was unused for long goes from the ledger, and nothing that anybody could miss goes along."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions import pruning
from sessiond.sessions.ledger import SPARE_PAGES, Ledger, TurnRefused
from sessiond.sessions.lifecycle import Limits
from sessiond.sessions.outline import TurnOutline
from sessiond.sessions.pruning import AT_ONCE, SIDE_S, batches, exempt, outdated
from sessiond.sessions.schema import SessionRecord
from tests.rig import Daemon, Reply
from tests.sessions.kinds import CONTRASTS, Messages, chat, prompt_of, rig_of
from tests.sessions.talk import Talk, checked
from tests.sessions.turns import make_turn

DAY = 86400.0
KEEP = 30 * DAY
NOW = 1_000 * DAY


def told(
    number: int, parent: int | None, days: float, length: int = 10, replaces: int | None = None
) -> TurnOutline:
    """A turn made so many days ago."""
    return TurnOutline(number, parent, length, 1, 0, "m", "f", NOW - days * DAY, replaces)


def gone(*turns: TurnOutline, keep: float = KEEP, last_used: float = 0.0) -> set[int]:
    return set(outdated(turns, last_used, NOW, keep))


# --- what goes: pure


def test_an_old_line_goes_and_a_young_one_stays() -> None:
    assert gone(told(1, None, 40), told(2, 1, 39)) == {1, 2}
    assert gone(told(1, None, 29), told(2, 1, 28)) == set()


def test_turns_that_a_young_one_stands_on_stay() -> None:
    assert gone(told(1, None, 90), told(2, 1, 80), told(3, 1, 5), told(4, 2, 70)) == {2, 4}


def test_a_line_of_one_turn_beside_a_longer_one_goes_after_an_hour() -> None:
    hour = SIDE_S / DAY
    talk = told(1, None, 0.5, 100), told(2, 1, 0.4, 200)
    assert gone(*talk, told(3, None, 1.1 * hour, 20)) == {3}
    assert gone(*talk, told(3, None, 0.9 * hour, 20)) == set()
    assert gone(*talk, told(3, 1, 1.1 * hour, 120)) == set(), "a branch is a line of two turns"


def test_lines_of_one_turn_with_no_longer_one_stay() -> None:
    assert gone(told(1, None, 2), told(2, None, 1), told(3, None, 0.5)) == set()


def test_a_main_line_of_one_turn_stays() -> None:
    """It is what the session is about by now: the longer one is older than a day."""
    assert gone(told(1, None, 5, 900), told(2, 1, 4, 999), told(3, None, 0.2)) == set()


def test_a_session_that_was_just_used_keeps_its_latest_line() -> None:
    """As one that was imported now and whose turns are old."""
    turns = told(1, None, 90), told(2, 1, 80), told(3, 1, 85)
    assert gone(*turns) == {1, 2, 3}
    assert gone(*turns, last_used=NOW - DAY) == {3}


def test_nothing_goes_where_all_is_kept_for_ever() -> None:
    assert gone(told(1, None, 9000), told(2, None, 9000), told(3, 2, 8000), keep=0) == set()


def test_a_short_keep_holds_for_side_lines_too() -> None:
    turns = told(1, None, 0, 100), told(2, 1, 0, 200), told(3, None, 60 / DAY, 20)
    assert gone(*turns, keep=30.0) == {3}
    assert gone(*turns, keep=90.0) == set()


ages = st.floats(0, 60, allow_nan=False)


@st.composite
def trees(draw: st.DrawFn) -> list[TurnOutline]:
    turns: list[TurnOutline] = []
    for number in range(1, draw(st.integers(0, 12)) + 1):
        numbers = [turn.number for turn in turns]
        parent = draw(st.none() | st.sampled_from(numbers)) if numbers else None
        replaces = draw(st.none() | st.sampled_from(numbers)) if numbers else None
        turns.append(told(number, parent, draw(ages), draw(st.integers(1, 999)), replaces))
    return turns


@given(trees(), st.sampled_from([0.0, 60.0, DAY, KEEP]), ages)
def test_in_any_tree_what_stays_can_stand_and_what_goes_is_old(
    turns: list[TurnOutline], keep: float, used: float
) -> None:
    removed = outdated(turns, NOW - used * DAY, NOW, keep)
    by_number = {turn.number: turn for turn in turns}
    assert removed <= by_number.keys()
    assert keep or not removed
    parents = {turn.parent for turn in turns}
    for turn in turns:
        if turn.parent in removed:
            assert turn.number in removed, "what stands on a turn goes with it"
        if turn.number in removed:
            assert turn.created < NOW - min(keep, SIDE_S)
            alone = turn.parent is None and turn.number not in parents
            assert turn.created < NOW - keep or alone
        elif keep and turn.created < NOW - keep:
            above = {number for number in by_number if _stands_on(number, turn.number, by_number)}
            young = any(by_number[number].created >= NOW - keep for number in above)
            latest = max(turns, key=lambda t: (t.created, t.number)).number
            assert young or (latest in above and used * DAY <= keep)
    if removed:
        order = [number for batch in batches(removed) for number in batch]
        assert sorted(order) == sorted(removed)
        for place, number in enumerate(order):
            assert not any(by_number[later].parent == number for later in order[place + 1 :])


def _stands_on(number: int | None, below: int, turns: dict[int, TurnOutline]) -> bool:
    while number is not None and number != below:
        number = turns[number].parent
    return number == below


def test_named_and_pinned_sessions_are_exempt() -> None:
    record = SessionRecord.new("x", 1.0)
    assert not exempt(record)
    assert exempt(replace(record, named=True))
    assert exempt(replace(record, pinned=True))


# --- in the ledger


@pytest.fixture
def path(state_dir: Path) -> Path:
    return state_dir / "ledger.sqlite"


def test_removed_turns_are_gone_and_their_numbers_too(path: Path) -> None:
    ledger, session = Ledger(path), SessionRecord.new("s", 1.0)
    for turn in (make_turn(1), make_turn(2, 1), make_turn(3, 2), make_turn(4, 1)):
        ledger.commit(session, turn)
    with pytest.raises(TurnRefused):
        ledger.remove(session.id, [2])
    assert [turn.number for turn in ledger.load("s")] == [1, 2, 3, 4]
    assert ledger.remove(session.id, [3, 4]) == 2
    assert ledger.remove(session.id, [3, 4]) == 0
    assert [outline.number for outline in ledger.outline_of(session.id)] == [1, 2]
    ledger.close()
    again = Ledger(path)
    assert again.load("s").take_number() == 5
    again.commit(session, make_turn(5, 2))
    assert again.remove(session.id, [5]) == 1
    assert again.load("s").take_number() == 6
    assert again.check_integrity() == 2
    again.delete("s")
    again.create(session)
    assert again.load("s").take_number() == 1
    again.close()


def test_empty_pages_are_given_back_a_few_at_a_time(path: Path) -> None:
    ledger, session = Ledger(path), SessionRecord.new("s", 1.0)
    for number in range(1, 61):
        ledger.commit(session, make_turn(number, None, "word " * 20_000))
    full = _pages(ledger)
    assert ledger.reclaim(64) == 0, "there is nothing to give back"
    for numbers in batches(range(2, 61)):
        ledger.remove(session.id, numbers)
    assert _pages(ledger) == full
    assert ledger.reclaim(64) == 64
    while ledger.reclaim(256):
        continue
    assert _pages(ledger) < full // 2
    assert _free(ledger) <= max(SPARE_PAGES, full // 4) + 1
    assert ledger.check_integrity() == 1
    ledger.close()


def test_a_small_ledger_of_an_older_format_is_written_anew_for_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("DROP TABLE t")
    ledger, session = Ledger(path), SessionRecord.new("s", 1.0)
    assert ledger._connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    for number in range(1, 31):
        ledger.commit(session, make_turn(number, None, "word " * 20_000))
    full = _pages(ledger)
    for numbers in batches(range(2, 31)):
        ledger.remove(session.id, numbers)
    assert ledger.reclaim(64) > 64
    assert _pages(ledger) < full // 2
    assert ledger._connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert ledger.check_integrity() == 1
    ledger.close()


def _pages(ledger: Ledger) -> int:
    return int(ledger._connection.execute("PRAGMA page_count").fetchone()[0])


def _free(ledger: Ledger) -> int:
    return int(ledger._connection.execute("PRAGMA freelist_count").fetchone()[0])


# --- in the daemon


async def ask(daemon: Daemon, kind: str, session: str | None, messages: Messages) -> Reply:
    """A turn of a session that no person named; its reply is what a fresh context says."""
    reply = await checked(daemon, kind, session, messages, named=False)
    messages.append({"role": "assistant", "content": reply.text})
    return reply


def asked(*said: str) -> Messages:
    return chat(*said)


def say(messages: Messages, text: str) -> Messages:
    messages.append({"role": "user", "content": text})
    return messages


def later(days: float) -> float:
    return time.time() + days * DAY


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_an_old_session_goes_with_all_that_only_it_used(state_dir: Path, kind: str) -> None:
    rig, named = rig_of(kind, state_dir), Talk(kind, session="named")
    async with rig.daemon() as daemon:
        old = asked("Something else entirely?")
        old[0]["content"] = "Another front. " * 30
        for text in ("", "And then?"):
            await ask(daemon, kind, "old", say(old, text) if text else old)
        await named.turns(daemon, 1)
        await daemon.machine.saver.save_all()
        before = daemon.machine.store.usage()
        found = await daemon.lifecycle.pruner.look(later(29))
        assert (found.turns, found.sessions) == (0, 0)
        found = await daemon.lifecycle.pruner.look(later(31))
        assert (found.turns, found.sessions) == (2, 1)
        assert [s.name for s in await daemon.lifecycle.summaries()] == ["named"]
        assert daemon.machine.store.lookup(prompt_of(old)).tokens < 20
        assert 0 < daemon.machine.store.usage().bytes < before.bytes
        owners = {v.owner.session for v in await daemon.machine.engine.views() if v.owner}
        assert len(owners) == 1
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.turns("old")
        daemon.machine.store.check_integrity()
        report = (await named.say(daemon, "Still there?")).report
        assert report.source == "resident"
    async with rig.daemon() as daemon:
        assert [s.name for s in await daemon.lifecycle.summaries()] == ["named"]
        assert daemon.ledger.check_integrity() == 2
        reply = await ask(daemon, kind, "old", asked("Anew?"))
        assert reply.report.turn == 1


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_a_title_goes_after_an_hour_and_the_talk_goes_on(state_dir: Path, kind: str) -> None:
    """
    1. A talk of three turns, and a line of one turn with the same front. 2. An hour later.
    Result: the side line is gone, the talk evaluates what is new, its numbers go on, also after a
    restart; the front that both had stays on disk.
    """
    rig = rig_of(kind, state_dir)
    async with rig.daemon() as daemon:
        talk = asked("Question 1?")
        await ask(daemon, kind, "s", talk)
        await ask(daemon, kind, "s", say(talk, "Question 2?"))
        aside = asked("A title for this?")
        await ask(daemon, kind, "s", aside)
        await daemon.machine.saver.save_all()
        talks = daemon.machine.store.lookup(prompt_of(talk)).tokens
        assert (await daemon.lifecycle.pruner.look(later(0.9 / 24))).turns == 0
        found = await daemon.lifecycle.pruner.look(later(1.1 / 24))
        assert (found.turns, found.sessions) == (1, 0)
        (listed,) = await daemon.lifecycle.summaries()
        assert (listed.turns, listed.lines) == (2, 1)
        assert [t.turn for t in await daemon.lifecycle.turns("s")] == [1, 2]
        assert daemon.machine.store.lookup(prompt_of(talk)).tokens == talks
        kept = daemon.machine.store.lookup(prompt_of(aside)).tokens
        assert kept < len(prompt_of(aside)) - 20
        roots = {v.owner.root for v in await daemon.machine.engine.views() if v.owner}
        assert roots == {1}
        daemon.machine.store.check_integrity()
    async with rig.daemon() as daemon:
        reply = await ask(daemon, kind, "s", say(talk, "Question 3?"))
        assert reply.report.turn == 4, "3 named the turn that is gone"
        assert reply.report.source == "disk"
        assert reply.report.prefilled_tokens < 40


async def test_named_and_pinned_sessions_lose_nothing(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk = Talk("attention", session="named")
        await talk.turns(daemon, 2)
        await Talk("attention", session="named", messages=asked()).turns(daemon, 1)
        await ask(daemon, "attention", "pinned", asked("Hi?"))
        await daemon.lifecycle._register.change("pinned", pinned=True)
        found = await daemon.lifecycle.pruner.look(later(365))
        assert (found.turns, found.sessions) == (0, 0)
        assert len(await daemon.lifecycle.turns("named")) == 3
        assert len(await daemon.lifecycle.turns("pinned")) == 1


async def test_keep_0_keeps_all(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    rig.limits = Limits(drain=5.0, keep=0)
    async with rig.daemon() as daemon:
        await ask(daemon, "attention", "s", asked("Hi?"))
        assert (await daemon.lifecycle.pruner.look(later(9999))).turns == 0
        assert len(await daemon.lifecycle.turns("s")) == 1


async def test_what_runs_or_is_not_saved_is_left_alone(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise LedgerError("The disk is full.")

    life: Any
    async with rig_of("attention", state_dir).daemon() as daemon:
        life, messages = daemon.lifecycle, asked("Hi?")
        await ask(daemon, "attention", "runs", messages)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "commit", refuse)
            await ask(daemon, "attention", "unsaved", asked("Hi?"))
            opened = await daemon.open(
                "runs", say(messages, "Go on."), max_tokens=30_000, ignore_eos=True, named=False
            )
            await anext(opened.events)
            assert (await life.pruner.look(later(99))).turns == 0
            assert life._floor.running == 1, "it ran all the while"
        await opened.events.aclose()
        await asyncio.wait(list(life._turns), timeout=20)
        await life._register.retry()
        assert len(await life.turns("runs")) == 2
        assert len(await life.turns("unsaved")) == 1
        found = await life.pruner.look(later(99))
        assert (found.turns, found.sessions) == (3, 2)


async def test_a_ledger_that_fails_in_the_middle_leaves_what_stands(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second few turns cannot be removed. Result: the talk goes on; later they go."""
    monkeypatch.setattr(pruning, "AT_ONCE", 2)
    remove, calls = Ledger.remove, list[list[int]]()

    def failing(ledger: Ledger, session: str, numbers: list[int]) -> int:
        calls.append(numbers)
        if len(calls) == 2:
            raise LedgerError("The disk is full.")
        return remove(ledger, session, numbers)

    monkeypatch.setattr(Ledger, "remove", failing)
    async with rig_of("attention", state_dir).daemon() as daemon:
        messages = asked()
        for text in ("One?", "Two?", "Three?", "Four?", "Five?"):
            await ask(daemon, "attention", "s", say(messages, text))
        with pytest.raises(LedgerError):
            await daemon.lifecycle.pruner.look(later(31))
        assert calls == [[5, 4], [3, 2]]
        assert [t.turn for t in await daemon.lifecycle.turns("s")] == [1, 2, 3]
        reply = await ask(daemon, "attention", "s", say(messages, "Six?"))
        assert (reply.report.turn, reply.report.saved) == (6, True)
        parents = {turn.turn: turn.parent for turn in await daemon.lifecycle.turns("s")}
        assert parents[6] == 3
        found = await daemon.lifecycle.pruner.look(later(62))
        assert (found.turns, found.sessions) == (4, 1)
        assert daemon.ledger.check_integrity() == 0


async def test_few_turns_go_in_one_transaction(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, sizes = Ledger.remove, list[int]()

    def counted(ledger: Ledger, session: str, numbers: list[int]) -> int:
        sizes.append(len(numbers))
        return remove(ledger, session, numbers)

    monkeypatch.setattr(Ledger, "remove", counted)
    session = SessionRecord.new("s", 1.0)
    ledger = Ledger(state_dir / "ledger.sqlite")
    for number in range(1, 101):
        ledger.commit(session, make_turn(number, number - 1 or None))
    ledger.close()
    async with rig_of("attention", state_dir).daemon() as daemon:
        assert (await daemon.lifecycle.pruner.look(time.time())).turns == 100
        assert len(daemon.lifecycle._register) == 0
    assert sum(sizes) == 100
    assert max(sizes) <= AT_ONCE


async def test_the_daemon_looks_by_itself(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "FIRST_S", 0.01)
    ledger = Ledger(state_dir / "ledger.sqlite")
    ledger.commit(SessionRecord.new("old", 1.0), make_turn(1))
    ledger.commit(SessionRecord.new("kept", 1.0, named=True), make_turn(1))
    ledger.close()
    async with rig_of("attention", state_dir).daemon() as daemon:
        for _ in range(2000):
            if len(daemon.lifecycle._register) == 1:
                break
            await asyncio.sleep(0.01)
        assert [record.name for record in daemon.lifecycle._register.records] == ["kept"]


async def test_copies_of_older_formats_go_too(state_dir: Path) -> None:
    copy = state_dir / "ledger.sqlite.v3.bak"
    copy.touch()
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.lifecycle.pruner.look(later(29))
        assert copy.exists()
        await daemon.lifecycle.pruner.look(later(31))
        assert not copy.exists()


async def test_a_retry_of_a_turn_that_is_gone_is_a_new_turn(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        retries: Any = daemon.lifecycle._retries
        await ask(daemon, "attention", "s", say(asked("One?"), "x")[:2])
        turn = type("Turn", (), {"session": "s", "number": 1})()
        other = type("Turn", (), {"session": "s", "number": 2})()
        retries._by_key[("", "s", "a")] = turn
        retries._by_key[("", "s", "b")] = other
        retries.forget_turns("s", {1})
        assert list(retries._by_key) == [("", "s", "b")]
        assert (await daemon.lifecycle.pruner.look(later(31))).sessions == 1
        assert not retries._by_key
