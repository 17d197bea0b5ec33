"""What goes first: the cheapest loss, gradually, and never what somebody reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.store import loss
from sessiond.store.loss import WEIGHT, Held, Rank, price, victims

LINES = ("a", "b", "c")


def held(key: str, position: int, rank: Rank = Rank.BOUNDARY, line: str = "a", **more: int) -> Held:
    fields = {"bytes": 1, "used": 1, "leased": False} | more
    return Held(key, line, position, fields["bytes"], rank, fields["used"], bool(fields["leased"]))


def in_a_row(line: str, count: int, used: int, step: int = 100) -> list[Held]:
    return [held(f"{line}{at}", at * step, line=line, used=used) for at in range(1, count + 1)]


@st.composite
def rings(draw: st.DrawFn, most: int = 9) -> list[Held]:
    entries = draw(
        st.lists(
            st.tuples(
                st.sampled_from(LINES),
                st.integers(1, 12),
                st.integers(1, 3),
                st.sampled_from(Rank),
                st.integers(1, 5),
                st.booleans(),
            ),
            max_size=most,
        )
    )
    return [
        Held(f"k{index}", line, position * 7, size, rank, used, leased)
        for index, (line, position, size, rank, used, leased) in enumerate(entries)
    ]


def reference(entries: Sequence[Held], need: int) -> list[str] | None:
    """The formula as the module's docstring has it, everything anew for every pick."""
    line_used = {
        line: max((e.used for e in entries if e.line == line), default=0) for line in LINES
    }
    left, picked = list(entries), list[str]()

    def cost(entry: Held) -> tuple[int, int, int, int, str]:
        same = [e for e in left if e.line == entry.line]
        below = max((e.position for e in same if e.position < entry.position), default=0)
        last_end = max((e.position for e in same if e.rank is Rank.END), default=0)
        is_old_end = entry.rank is Rank.END and entry.position < last_end
        weight = WEIGHT[Rank.LAST_BOUNDARY if is_old_end else entry.rank]
        lost = weight * (entry.position - below)
        return lost.bit_length(), line_used[str(entry.line)], lost, entry.used, entry.key

    while need > 0:
        free = [entry for entry in left if not entry.leased]
        if not free:
            return None
        gone = min(free, key=cost)
        left.remove(gone)
        picked.append(gone.key)
        need -= gone.bytes
    return picked


@settings(deadline=None)
@given(rings(), st.integers(0, 20))
def test_picks_are_those_of_the_formula(entries: list[Held], need: int) -> None:
    assert victims(entries, need) == reference(entries, need)


@settings(deadline=None)
@given(rings(most=40), st.integers(1, 120))
def test_enough_goes_and_nothing_needless_after_it_and_nothing_leased(
    entries: list[Held], need: int
) -> None:
    sizes = {entry.key: entry.bytes for entry in entries}
    picked = victims(entries, need)
    free = [entry for entry in entries if not entry.leased]
    if picked is None:
        assert sum(entry.bytes for entry in free) < need
        return
    freed = [sizes[key] for key in picked]
    assert sum(freed) >= need > sum(freed[:-1])
    assert len(set(picked)) == len(picked)
    assert set(picked) <= {entry.key for entry in free}


@settings(deadline=None)
@given(rings(most=20), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_order_of_the_entries_does_not_matter(
    entries: list[Held], need: int, draw: Random
) -> None:
    shuffled = list(entries)
    draw.shuffle(shuffled)
    assert victims(shuffled, need) == victims(entries, need)


def test_nothing_is_picked_when_nothing_is_needed() -> None:
    assert victims([held("a", 10)], 0) == []


def test_a_line_gets_thinner_everywhere_before_it_loses_a_part() -> None:
    line = in_a_row("a", 16, used=1)
    picked = victims(line, 8) or []
    left = [0, *(entry.position for entry in line if entry.key not in picked)]
    assert max(b - a for a, b in pairwise(left)) == 200


def test_the_successor_of_a_removed_one_is_worth_its_distance_too() -> None:
    line = [held("a", 1000), held("b", 1010), held("c", 1025)]
    assert victims(line, 2) == ["b", "c"]
    assert victims([*line[:2], held("c", 1300)], 1) == ["b"]


@pytest.mark.parametrize("dear", [Rank.FRONT, Rank.END])
def test_fronts_and_last_ends_outlive_boundaries_at_thirty_times_the_distance(dear: Rank) -> None:
    line = [held("dear", 1000, dear), held("boundary", 31_000, Rank.BOUNDARY)]
    assert victims(line, 1) == ["boundary"]


def test_last_boundaries_outlive_ordinary_ones_and_those_outlive_steps() -> None:
    line = [
        held("last", 100, Rank.LAST_BOUNDARY),
        held("ordinary", 200, Rank.BOUNDARY),
        held("step", 300, Rank.STEP),
    ]
    assert victims(line, 3) == ["step", "ordinary", "last"]


def test_a_front_of_few_tokens_does_not_outlive_a_long_talk() -> None:
    line = [held("front", 30, Rank.FRONT), held("boundary", 31_000)]
    assert victims(line, 1) == ["front"]


def test_only_the_last_end_of_a_line_counts_as_one_until_it_goes() -> None:
    line = [
        held("front", 1000, Rank.FRONT),
        held("old", 11_000, Rank.END),
        held("new", 11_300, Rank.END, leased=1),
    ]
    assert victims(line, 1) == ["old"]
    alone = [line[0], line[1]]
    assert victims(alone, 1) == ["front"]


def test_among_equals_the_line_used_longest_ago_loses_first() -> None:
    lines = in_a_row("fresh", 8, used=9) + in_a_row("stale", 8, used=2)
    picked = victims(lines, 4) or []
    assert all(key.startswith("stale") for key in picked)


def test_a_line_is_as_fresh_as_its_freshest_entry() -> None:
    a = [held("a1", 100, line="a", used=1), held("a2", 200, line="a", used=9)]
    b = [held("b1", 100, line="b", used=5), held("b2", 200, line="b", used=5)]
    assert (victims([*a, *b], 1) or [])[0].startswith("b")


def test_recency_does_not_outweigh_a_loss_twice_as_large() -> None:
    lines = [held("stale", 256, line="a", used=1), held("fresh", 127, line="b", used=9)]
    assert victims(lines, 1) == ["fresh"]


def test_two_texts_at_the_same_position_are_no_neighbours() -> None:
    """A line may branch: the same position is then another text, not a place to go on from."""
    line = [held("x", 5000, Rank.STEP), held("y", 5000, Rank.STEP), held("z", 5100)]
    assert victims(line, 1) == ["z"]


def test_ten_thousand_entries_are_priced_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[str] = []

    def counting(entry: Held, *rest: Any, **more: Any) -> loss.Price:
        priced.append(entry.key)
        return price(entry, *rest, **more)

    monkeypatch.setattr(loss, "price", counting)
    entries = [entry for name in LINES for entry in in_a_row(name, 3333, used=1)]
    assert len(victims(entries, 9000) or []) == 9000
    assert len(priced) < 2 * len(entries)
