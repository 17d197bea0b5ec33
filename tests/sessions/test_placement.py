"""State is captured where a line is gone back to, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.sessions.placement import MOST_STEPS, NEAR, STEP_MIN, Place, places
from sessiond.sessions.prompt import Boundaries
from sessiond.store.loss import Rank

lengths = st.integers(1, 400_000)
shapes = st.builds(
    lambda length, landing, front, users: (
        length,
        int(landing * length),
        Boundaries(
            None if front is None else int(front * length),
            tuple(sorted({int(user * length) for user in users})),
        ),
    ),
    lengths | st.integers(1, 3000),
    st.floats(0, 1) | st.just(0.0),
    st.none() | st.floats(0, 0.3),
    st.lists(st.floats(0, 1, exclude_max=True), max_size=4),
)
Shape = tuple[int, int, Boundaries]


def steps(found: tuple[Place, ...]) -> list[int]:
    return [place.position for place in found if place.rank is Rank.STEP]


@given(shape=shapes)
def test_places_are_ascending_and_between_landing_and_end(shape: Shape) -> None:
    length, landing, boundaries = shape
    positions = [place.position for place in places(length, landing, boundaries)]
    assert positions == sorted(set(positions))
    assert all(landing < at < length for at in positions)


@given(shape=shapes)
def test_every_boundary_and_the_last_token_have_a_place_of_their_rank(shape: Shape) -> None:
    length, landing, boundaries = shape
    found = {place.position: place.rank for place in places(length, landing, boundaries)}
    expected: dict[int, Rank] = {length - 1: Rank.LAST_BOUNDARY}
    for user in boundaries.users:
        expected[user] = Rank.LAST_BOUNDARY
    if boundaries.front is not None:
        expected[boundaries.front] = Rank.FRONT
    near = landing + NEAR if landing else 0
    wanted = {at: rank for at, rank in expected.items() if at > near or landing < at == length - 1}
    assert {at: rank for at, rank in found.items() if rank is not Rank.STEP} == wanted


@given(shape=shapes)
def test_steps_are_few_and_never_near_another_place(shape: Shape) -> None:
    length, landing, boundaries = shape
    found = places(length, landing, boundaries)
    assert len(steps(found)) <= MOST_STEPS
    for step in steps(found):
        assert step - landing >= STEP_MIN
        others = [place.position for place in found if place.position != step]
        assert min(abs(step - other) for other in others) >= STEP_MIN


@given(shape=shapes, back=st.floats(0, 1))
def test_a_rewind_of_any_length_evaluates_at_most_a_multiple_of_it(
    shape: Shape, back: float
) -> None:
    length, landing, boundaries = shape
    if length - 1 <= landing:
        return
    span = length - 1 - landing
    target = length - 1 - int(back * span)
    kept = [landing, *(place.position for place in places(length, landing, boundaries))]
    evaluated = target - max(at for at in kept if at <= target)
    ratio = max(4.0, (span / STEP_MIN) ** (1 / MOST_STEPS))
    rewound = max(length - 1 - target, STEP_MIN)
    # A step that another place stands in for is off by less than STEP_MIN, which exceeds NEAR.
    assert evaluated <= ratio * rewound + STEP_MIN


def test_steps_grow_with_the_distance_from_the_end() -> None:
    last = 100_000
    distances = [last - at for at in steps(places(last + 1, 0, Boundaries()))]
    assert distances == [32768, 8192, 2048, 512]


def test_a_very_long_prefill_is_covered_by_as_many_steps() -> None:
    last = 512 * 10**4
    distances = [last - at for at in steps(places(last + 1, 0, Boundaries()))]
    assert distances == [512_000, 51_200, 5120, 512]


@pytest.mark.parametrize(("last", "expected"), [(1023, 0), (1024, 1), (2559, 1), (2560, 2)])
def test_a_short_prefill_has_only_the_steps_that_fit(last: int, expected: int) -> None:
    assert len(steps(places(last + 1, 0, Boundaries()))) == expected
    assert len(steps(places(last + 101, 100, Boundaries()))) == expected


def test_no_steps_if_none_are_wanted() -> None:
    assert places(100_000, 0, Boundaries(), most_steps=0) == (Place(99_999, Rank.LAST_BOUNDARY),)


def test_the_stronger_rank_wins() -> None:
    assert places(10, 0, Boundaries(9, (9,))) == (Place(9, Rank.FRONT),)
    assert places(10, 0, Boundaries(None, (9,))) == (Place(9, Rank.LAST_BOUNDARY),)


def test_an_append_captures_the_last_token_and_no_message_that_begins_at_the_landing() -> None:
    found = places(1200, 1100, Boundaries(300, (800, 1105)))
    assert found == (Place(1199, Rank.LAST_BOUNDARY),)


def test_a_message_further_behind_the_landing_is_captured() -> None:
    found = places(1200, 1100, Boundaries(300, (800, 1140)))
    assert found == (Place(1140, Rank.LAST_BOUNDARY), Place(1199, Rank.LAST_BOUNDARY))


def test_nothing_is_captured_where_nothing_is_evaluated() -> None:
    assert places(100, 99, Boundaries(10, (50,))) == ()
