from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.cli import words
from sessiond.cli.output import GAP, Cell, Column, fit
from sessiond.sessions.turn import SessionSummary

SESSION = SessionSummary(
    name="s",
    group=None,
    agent=None,
    title="",
    state="disk",
    tokens=9,
    turns=1,
    lines=1,
    created=0,
    last_used=0,
    bytes=0,
    policy="fork",
    hit_rate=0,
    back_in_ms=400,
)


@pytest.mark.parametrize(
    ("session", "text"),
    [
        (replace(SESSION, state="resident", back_in_ms=0), "now"),
        (SESSION, "0.4 s"),
        (replace(SESSION, back_in_ms=3), "0.1 s"),
        (
            replace(SESSION, state="ledger", back_in_ms=41_000, reason="model changed"),
            "~41 s needs re-reading: model changed",
        ),
        (replace(SESSION, state="ledger", back_in_ms=41_000), "~41 s needs re-reading"),
        (replace(SESSION, state="ledger", back_in_ms=720_000), "~12 min needs re-reading"),
    ],
)
def test_back_in(session: SessionSummary, text: str) -> None:
    assert words.back_in(session) == text


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (86_399, "23 h ago"),
        (86_400, "1 d ago"),
    ],
)
def test_ago(age: float, text: str) -> None:
    assert words.ago(1e9, 1e9 + age) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.44, "0.4 ms"),
        (85.2, "85 ms"),
        (999.4, "999 ms"),
        (999.6, "1.0 s"),
        (9_940, "9.9 s"),
        (9_960, "10 s"),
        (119_400, "119 s"),
        (119_600, "2 min"),
    ],
)
def test_duration(milliseconds: float, text: str) -> None:
    assert words.duration(milliseconds) == text


@given(st.text())
def test_cleaned_text_is_one_line_without_control_characters(text: str) -> None:
    assert words.clean(text).isprintable()


CELLS = st.text("abc 漢", max_size=60).map(Cell)
COLUMNS = (
    Column("NAME"),
    Column("AGENT", shrink="crop", least=6),
    Column("TITLE", shrink="crop", least=12),
    Column("BACK IN", shrink="wrap", least=14),
)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), max_size=4), st.integers(20, 200))
def test_a_table_fits_the_room_or_only_what_must_stay_whole_is_left(
    rows: list[tuple[Cell, ...]], room: int
) -> None:
    natural = fit(COLUMNS, rows, None)
    name, agent, title, back = fit(COLUMNS, rows, room)
    shown = [width for width in (name, agent, title, back) if width]
    total = sum(shown) + GAP * (len(shown) - 1)
    assert name == natural[0]
    assert back >= min(natural[3], 14)
    assert agent == 0 or agent >= min(natural[1], 6)
    assert title == 0 or title >= min(natural[2], 12)
    assert total <= room or (agent, title, back) == (0, 0, min(natural[3], 14))
    if sum(natural) + GAP * 3 <= room:
        assert [name, agent, title, back] == natural
