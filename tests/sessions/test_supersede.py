"""What is dropped from disk is never what a living line goes on from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessiond.sessions.supersede import KEPT, KEPT_IN_MEMORY, Written, superseded
from sessiond.store.loss import Rank

paths = st.lists(st.integers(0, 2), min_size=1, max_size=8)
ranks = st.sampled_from([Rank.LAST_BOUNDARY, Rank.END, Rank.FRONT])
sets = st.lists(st.tuples(paths, ranks, st.integers(0, 1)), max_size=12)


def written(items: list[tuple[list[int], Rank, int]]) -> list[Written]:
    return [
        Written(str(index), line, np.asarray(path, np.int32), rank)
        for index, (path, rank, line) in enumerate(items)
    ]


@given(sets)
def test_the_end_of_every_branch_and_every_front_stay(
    items: list[tuple[list[int], Rank, int]],
) -> None:
    gone = set(superseded(written(items)))
    for index, (path, rank, line) in enumerate(items):
        after = [
            other
            for other, (longer, rank_, line_) in enumerate(items)
            if (rank_, line_) == (rank, line)
            and len(longer) > len(path)
            and longer[: len(path)] == path
        ]
        if rank is Rank.FRONT or not after:
            assert str(index) not in gone


@given(st.integers(1, 12))
def test_of_a_straight_line_the_last_few_stay(length: int) -> None:
    line = [([1] * n, Rank.END, 0) for n in range(1, length + 1)]
    gone = superseded(written(line))
    assert sorted(map(int, gone)) == list(range(max(0, length - KEPT[Rank.END])))


def test_a_longer_branch_replaces_nothing_of_a_shorter_one() -> None:
    """1. Six turns. 2. Back to the second, and two turns there. Result: in memory, each branch
    keeps the ends of its own last turns, whichever is longer.
    """
    longer = [([1] * 10 * n, Rank.END, 0) for n in range(1, 7)]
    shorter = [([1] * 20 + [2] * n, Rank.END, 0) for n in (3, 5)]
    gone = superseded(written([*longer, *shorter]), KEPT_IN_MEMORY)
    assert sorted(gone) == ["0", "1"]
