"""Eight sessions of forty turns share a budget: reuse gets less step by step, never at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

import pytest

from sessiond.store.ring import Ring
from sessiond.store.slabs import PAGE
from tests.store.rings import Talk

SESSIONS, TURNS = 8, 40
ALL = SESSIONS * (1 + 2 * TURNS)
"""A front, and for each turn the end of the prompt and the end, which is the next start."""
TURN = 300
ORDERS = ("by turns", "one after the other")


class Reuse(NamedTuple):
    """Tokens to evaluate, on average over the sessions; `last` over the last four user messages."""

    go_on: float
    front: float
    last: float
    any: float
    farthest: int


def order_of(talks: list[Talk], order: str) -> Iterator[Talk]:
    if order == "by turns":
        return (talk for _ in range(TURNS) for talk in talks)
    return (talk for talk in talks for _ in range(TURNS))


@cache
def played(slots: int, order: str) -> Reuse:
    """`offered` asserts the budget after every capture."""
    ring = Ring(slots * PAGE)
    talks = [Talk.of(number, TURNS) for number in range(SESSIONS)]
    for number, talk in enumerate(order_of(talks, order)):
        talk.turn(ring)
        if number % SESSIONS == 0:
            ring.check_integrity()
    ring.check_integrity(deep=True)
    back = [[talk.evaluated(ring, at) for at in talk.positions] for talk in talks]
    return Reuse(
        go_on=mean(talk.evaluated(ring, talk.end) for talk in talks),
        front=mean(talk.evaluated(ring, talk.front) for talk in talks),
        last=mean(at for each in back for at in each[-4:]),
        any=mean(at for each in back for at in each),
        farthest=max(at for each in back for at in each),
    )


@pytest.mark.parametrize("order", ORDERS)
def test_with_a_quarter_the_latest_and_the_front_are_all_there(order: str) -> None:
    reuse = played(ALL // 4, order)
    assert (reuse.go_on, reuse.front) == (0, 0)
    assert reuse.last <= TURN / 2
    assert reuse.any <= TURN
    assert reuse.farthest <= 4 * TURN


@pytest.mark.parametrize("order", ORDERS)
def test_with_three_for_each_session_everybody_goes_on_at_once(order: str) -> None:
    reuse = played(3 * SESSIONS, order)
    assert (reuse.go_on, reuse.front) == (0, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_half_the_budget_costs_at_most_a_few_turns_more_each_time(order: str) -> None:
    slots = (ALL, ALL // 2, ALL // 4, ALL // 8, ALL // 16)
    curve = [played(number, order).any for number in slots]
    assert curve[0] == 0
    assert all(less <= more for less, more in pairwise(curve))
    steps = [more - less for less, more in pairwise(curve)]
    assert max(steps) <= 4 * TURN
    cold = mean(Talk.of(0, TURNS).front + TURN * turn for turn in range(TURNS))
    assert curve[-1] <= cold / 3
