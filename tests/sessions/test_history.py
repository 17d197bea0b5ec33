"""The turns of the last day: bounded, true in their sums, thinned without losing extremes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.sessions.history import (
    MOST_SHOWN,
    SPANS,
    WINDOW_S,
    History,
    PastTurn,
    spans,
    thinned,
)
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.turn import Miss, Source, TurnReport
from tests.sessions.kinds import chat, rig_of

BEGAN = 1_700_000_000.0
SOURCES: tuple[Source, ...] = ("resident", "disk", "ledger", "fork", "new")


def past(time: float, ttft_ms: float = 5.0, source: Source = "resident") -> PastTurn:
    return PastTurn(time, "id", source, 100, 80, 30, 20, ttft_ms, None)


def report(source: Source = "disk", miss: Miss | None = None) -> TurnReport:
    return TurnReport(
        session="work",
        line="main",
        turn=1,
        source=source,
        prompt_tokens=100,
        cached_tokens=80,
        restored_tokens=30,
        prefilled_tokens=20,
        completion_tokens=4,
        restore_ms=1.0,
        ttft_ms=7.5,
        prompt_ms=2.0,
        predicted_ms=3.0,
        saved=True,
        finish_reason="stop",
        miss=miss,
    )


def record(name: str = "work") -> SessionRecord:
    return replace(SessionRecord.new(name, BEGAN, named=True), id=f"id of {name}")


def test_a_turn_is_told_as_it_was_with_the_name_its_session_has_now() -> None:
    history = History(BEGAN)
    history.add(record(), report(miss=Miss("evicted", "Gone.", 9)), BEGAN + 3)
    told = history.report(BEGAN + 5, [replace(record(), name="renamed")])
    assert told.shown == (PastTurn(BEGAN + 3, "renamed", "disk", 100, 80, 30, 20, 7.5, "evicted"),)
    (span,) = told.spans
    assert (span.turns, span.prompt_tokens, span.cached_tokens) == (1, 100, 80)
    assert (span.restored_tokens, span.prefilled_tokens, span.missed) == (30, 20, 1)
    assert span.start <= BEGAN + 3 < span.start + span.seconds
    assert (told.since, told.until, told.turns) == (BEGAN, BEGAN + 5, 1)


def test_a_session_that_is_gone_has_no_name() -> None:
    history = History(BEGAN)
    history.add(record(), report(), BEGAN)
    assert [turn.session for turn in history.report(BEGAN, []).shown] == [""]


def test_an_owner_is_told_the_turns_of_own_sessions() -> None:
    history = History(BEGAN)
    sessions = [record("alice/work"), record("bob/work"), record("work")]
    for session in sessions:
        history.add(session, report(), BEGAN)
    assert history.report(BEGAN, sessions).turns == 3
    told = history.report(BEGAN, sessions, "alice")
    assert [turn.session for turn in told.shown] == ["alice/work"]
    assert (told.turns, sum(span.turns for span in told.spans)) == (1, 1)


def test_no_more_turns_are_kept_than_was_said_and_the_window_says_so() -> None:
    history = History(BEGAN, most=3)
    for second in range(5):
        history.add(record(), report(), BEGAN + second)
    told = history.report(BEGAN + 9, [])
    assert len(history) == told.turns == 3
    assert told.since == BEGAN + 1


def test_turns_older_than_a_day_are_not_told() -> None:
    history = History(BEGAN)
    history.add(record(), report(), BEGAN)
    history.add(record(), report(), BEGAN + WINDOW_S)
    told = history.report(BEGAN + WINDOW_S + 1, [])
    assert (told.turns, told.since) == (1, BEGAN + 1)


def test_a_clock_that_went_back_does_no_harm() -> None:
    history = History(BEGAN)
    history.add(record(), report(), BEGAN)
    assert history.report(BEGAN - 60, []).since == BEGAN - 60


@given(
    seconds=st.lists(st.floats(0, WINDOW_S), max_size=200),
    window=st.floats(0, WINDOW_S),
)
def test_spans_cover_every_turn_once_and_are_few(seconds: list[float], window: float) -> None:
    turns = [past(BEGAN + at) for at in seconds if at <= window]
    found = spans(turns, BEGAN, BEGAN + window)
    assert len(found) <= SPANS + 1
    assert sum(span.turns for span in found) == len(turns)
    assert sum(span.prompt_tokens for span in found) == 100 * len(turns)
    for one, other in pairwise(found):
        assert one.start + one.seconds <= other.start
    for turn in turns:
        assert sum(span.start <= turn.time < span.start + span.seconds for span in found) == 1


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(1, 1e5), st.sampled_from(SOURCES))),
    st.integers(15, 60),
)
def test_what_is_shown_of_many_has_the_extremes(
    drawn: list[tuple[float, float, Source]], most: int
) -> None:
    turns = [past(time, ms, source) for time, ms, source in sorted(drawn)]
    kept = thinned(turns, most)
    assert len(kept) <= most
    assert [turn.time for turn in kept] == sorted(turn.time for turn in kept)
    for source in {turn.source for turn in turns}:
        every = [turn.ttft_ms for turn in turns if turn.source == source]
        shown = [turn.ttft_ms for turn in kept if turn.source == source]
        assert (min(shown), max(shown)) == (min(every), max(every))


def test_few_are_all_shown() -> None:
    turns = [past(float(at)) for at in range(MOST_SHOWN)]
    assert thinned(turns) == turns
    assert len(thinned([*turns, past(1e6)])) < MOST_SHOWN


@pytest.mark.parametrize("removed", [False, True])
async def test_the_daemon_tells_its_turns(state_dir: Path, removed: bool) -> None:
    """
    1. Two turns of a session; it may be removed then.
    2. The daemon starts again.
    Result: the history has what the turns reported, and begins anew with the daemon.
    """
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        first = (await daemon.say("work", chat("Hello"))).report
        second = (await daemon.say("work", chat("Other"))).report
        if removed:
            await daemon.lifecycle.delete("work")
        told = await daemon.lifecycle.history()
        assert [turn.session for turn in told.shown] == ["" if removed else "work"] * 2
        assert [(t.source, t.prefilled_tokens, t.ttft_ms) for t in told.shown] == [
            (one.source, one.prefilled_tokens, one.ttft_ms) for one in (first, second)
        ]
        assert sum(s.cached_tokens for s in told.spans) == second.cached_tokens > 0
        assert (await daemon.lifecycle.history("nobody")).turns == 0
    async with rig.daemon() as daemon:
        assert (await daemon.lifecycle.history()).turns == 0
