"""What is only a clock, a date or an id, and what is more than that."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.sessions.cause import VOLATILE, Change, mask, volatile_change

CLOCKS = [
    ("It is 10:02.", "It is 10:03.", "10:02", "10:03"),
    ("at 9:58 am", "at 10:01 am", "9:58 am", "10:01 am"),
    ("at 11:59 AM, sharp", "at 12:00 PM, sharp", "11:59 AM", "12:00 PM"),
    ("around 3 PM", "around 4 PM", "3 PM", "4 PM"),
    ("11:59 a.m. today", "12:01 p.m. today", "11:59 a.m.", "12:01 p.m."),
    ("[10:02:11]", "[10:02:12]", "10:02:11", "10:02:12"),
    ("10:02:11.123+01:00 on", "10:02:11.456+01:00 on", "10:02:11.123+01:00", "10:02:11.456+01:00"),
    ("2025-11-29T10:02:11Z", "2025-11-29T10:03:12Z", "10:02:11Z", "10:03:12Z"),
    ("2025-11-29T23:59:11Z", "2025-11-30T00:00:02Z", "23:59:11Z", "00:00:02Z"),
    ("Sat Nov 29 10:02:11 2025", "Sat Nov 29 10:03:11 2025", "10:02:11", "10:03:11"),
    ("at 10:02 UTC", "at 10:03 UTC", "10:02 UTC", "10:03 UTC"),
    ("from 10:00 to 10:02", "from 10:00 to 10:03", "10:02", "10:03"),
]
DATES = [
    ("Today is 2025-11-29.", "Today is 2025-11-30.", "2025-11-29", "2025-11-30"),
    ("2025-11-29T10:02:11Z", "2025-11-30T10:02:11Z", "2025-11-29", "2025-11-30"),
    ("29.11.2025", "1.12.2025", "29.11.2025", "1.12.2025"),
    ("11/29/25", "11/30/25", "11/29/25", "11/30/25"),
    ("2025/11/29", "2025/11/30", "2025/11/29", "2025/11/30"),
    ("November 29, 2025", "December 1, 2025", "November 29, 2025", "December 1, 2025"),
    ("Nov 29th", "Nov 30th", "Nov 29th", "Nov 30th"),
    ("the 29 November 2025", "the 30 November 2025", "29 November 2025", "30 November 2025"),
    ("on Saturday", "on Sunday", "Saturday", "Sunday"),
    ("Sat, 29 Nov", "Sun, 30 Nov", "Sat", "Sun"),
]
IDS = [
    (
        "run 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "run 3f2504e0-4f89-11d3-9a0c-0305e82c3302",
        "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "3f2504e0-4f89-11d3-9a0c-0305e82c3302",
    ),
    ("HEAD is 1a2b3c4d", "HEAD is 5e6f7a8b", "1a2b3c4d", "5e6f7a8b"),
    ("msg_01AbCd", "msg_02XyZz", "msg_01AbCd", "msg_02XyZz"),
    ("session-2f9a-77bc ends", "session-11aa-99ff ends", "session-2f9a-77bc", "session-11aa-99ff"),
    ("now 1764410520", "now 1764410580", "1764410520", "1764410580"),
    ("message_id: 4711", "message_id: 4712", "4711", "4712"),
    ('{"id": "4711"}', '{"id": "4712"}', "4711", "4712"),
    ("issue #12", "issue #13", "12", "13"),
]
MORE = [
    ("It is 10:02 and dry.", "It is 10:03 and wet."),
    ("It is 10:02.", "It is late."),
    ("10:02", "10:02 10:03"),
    ("It is 10:02.", "It  is 10:03."),
    ("21.5 °C", "22 °C"),
    ("power 1500 W", "power 1600 W"),
    ("16384 MB free", "32768 MB free"),
    ("42 files", "43 files"),
    ("load 0.25", "load 0.50"),
    ("version 1.2.3", "version 1.2.4"),
    ("192.168.0.1", "192.168.0.2"),
    ("chapter 3:1", "chapter 3:2"),
    ("Qwen3-Coder-30B", "Qwen3-Coder-80B"),
    ("Sunny, 4 of Marble 12", "Monitor, 4 of Marble 13"),
    ("They may leave", "They mar leave"),
    ("the sun", "the sat"),
    ("M main.py", "M main.py\n?? new.py"),
    ("deadbeef", "feedface"),
    ("", "10:02"),
]


@pytest.mark.parametrize(
    ("kind", "before", "after", "old", "new"),
    [
        *(("clock", *row) for row in CLOCKS),
        *(("date", *row) for row in DATES),
        *(("identifier", *row) for row in IDS),
    ],
)
def test_a_clock_a_date_or_an_id_alone(
    kind: str, before: str, after: str, old: str, new: str
) -> None:
    expected = Change(kind, old, new)  # type: ignore[arg-type]
    assert volatile_change(before, after) == expected
    around = "Be brief.\n{}\nUse tools.".format
    assert volatile_change(around(before), around(after)) == expected


@pytest.mark.parametrize(("before", "after"), MORE)
def test_a_change_of_anything_else_has_no_name(before: str, after: str) -> None:
    assert volatile_change(before, after) is None
    assert volatile_change(after, before) is None


@pytest.mark.parametrize("more", [" x", "\n21 °C", " Use bash."])
@pytest.mark.parametrize(("before", "after"), [row[:2] for row in (*CLOCKS, *DATES, *IDS)])
def test_a_small_change_beside_another_is_not_called_small(
    before: str, after: str, more: str
) -> None:
    assert volatile_change(before, f"{after}{more}") is None
    assert volatile_change(f"a {before}", f"b {after}") is None


def test_white_space_is_what_differs_where_all_words_are_the_same() -> None:
    assert volatile_change("a  b\n", "a b") == Change("whitespace")
    assert volatile_change("ab", "a b") is None


texts = st.text(st.sampled_from("aM1 :-./\n") | st.characters(codec="utf-8"), max_size=40)
clocks = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))


@given(texts, texts, clocks, clocks)
def test_only_the_values_are_told_of_a_change(before: str, after: str, old: str, new: str) -> None:
    change = volatile_change(f"{before} {old} {after}", f"{before} {new} {after}")
    if old == new:
        assert change == Change("whitespace")
    else:
        assert change is not None
        assert change.kind == "clock"
        assert (change.before[:5], change.after[:5]) == (old, new)


@given(texts)
def test_nothing_volatile_is_left_behind_a_mask(text: str) -> None:
    assert mask(mask(text)) == mask(text)


@pytest.mark.parametrize(
    "piece", ["a-", "a1_", "1", "ab12-cd34_", "10:", "id:", "#", "Sat ", "29 ", "- ", "a_1"]
)
def test_a_long_text_of_any_kind_is_read_in_one_go(piece: str) -> None:
    """Counted against text of the same length that has nothing to find: no square of it."""

    def spent(text: str) -> float:
        began = time.process_time()
        for pattern in VOLATILE.values():
            pattern.sub("", text)
        return time.process_time() - began

    size = 60_000
    assert spent((piece * size)[:size]) < 50 * (spent("x " * (size // 2)) + 0.01)
