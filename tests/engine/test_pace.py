"""Which chunk is evaluated beside streams, for machines of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.pace import LEAST_CHUNK, Cost, Pace, Slowness, best_size

SIZES = (16, 32, 64, 128, 256, 512)
BUDGET = 160.0
Took = Callable[[int], float]
costs = st.dictionaries(
    st.sampled_from(SIZES),
    st.builds(Cost, st.floats(0.1, 1e5), st.booleans()),
    min_size=1,
)
budgets = st.floats(0.0, 1e4)


class Line:
    """A prompt that is read beside a stream, chunk by chunk."""

    def __init__(self, pace: Pace, took: Took, budget: float = BUDGET) -> None:
        self.pace, self.took, self.budget = pace, took, budget
        self.slowness = Slowness()

    def read(self, chunks: int) -> list[int]:
        return [self.chunk() for _ in range(chunks)]

    def chunk(self) -> int:
        size = self.pace.chunk(self.budget, self.slowness)
        self.alone(size)
        return size

    def alone(self, tokens: int) -> None:
        self.slowness = self.pace.measured(tokens, self.took(tokens), self.slowness)


def even(ms: float) -> Took:
    return lambda tokens: ms * tokens


def tiled(tokens: int) -> float:
    """Milliseconds on a CPU whose attention is quick for whole tiles of 64 queries only."""
    whole, rest = divmod(tokens, 64)
    return 200.0 * whole + 20.0 * rest


def test_before_anything_is_measured_a_chunk_is_whole() -> None:
    assert Pace(512).chunk(1.0, Slowness()) == 512


def test_a_machine_of_an_even_rate_fills_its_budget() -> None:
    assert Line(Pace(512), even(2.0)).read(5) == [512, 64, 64, 64, 64]


def test_a_quick_machine_reads_whole_batches() -> None:
    assert set(Line(Pace(512), even(0.1)).read(9)) == {512}


def test_where_small_chunks_take_longer_than_a_tile_the_tile_is_settled_on() -> None:
    made = Line(Pace(512), tiled).read(60)
    assert made[:3] == [512, 32, 32]
    assert set(made[3:]) == {64}


@pytest.mark.parametrize("tail", [16, 20, 40, 60])
@pytest.mark.parametrize("quicker", [1, 5])
def test_a_tile_is_found_from_the_ends_of_short_prompts_alone(tail: int, quicker: int) -> None:
    line = Line(Pace(512), lambda tokens: tiled(tokens) / quicker)
    for _ in range(200):
        line.alone(tail)
    assert min(line.read(60)[8:]) >= 64


def test_where_nothing_fits_the_quickest_is_taken() -> None:
    made = Line(Pace(512), lambda tokens: 400.0 + tokens).read(60)
    assert set(made[2 * len(SIZES) :]) == {LEAST_CHUNK}


def test_a_slow_machine_tries_a_tile_and_goes_back_to_the_least() -> None:
    line = Line(Pace(512), even(50.0))
    line.alone(20)
    made = line.read(100)
    assert made.count(64) == 2
    assert set(made) == {64, LEAST_CHUNK}


@pytest.mark.parametrize("before", [1, 4])
def test_a_hiccup_of_the_machine_changes_no_more_than_one_chunk(before: int) -> None:
    pace = Pace(512)
    line = Line(pace, even(2.0))
    line.read(before)
    line.slowness = pace.measured(64, 5000.0, line.slowness)
    assert set(line.read(10)[before == 1 :]) == {64}


def test_a_machine_that_gets_slower_is_followed_after_two_chunks() -> None:
    line = Line(Pace(512), even(2.0))
    line.read(6)
    line.took = even(8.0)
    assert line.read(4) == [64, 64, 16, 16]


def test_a_machine_that_gets_faster_is_followed_at_once() -> None:
    line = Line(Pace(512), even(2.0))
    line.read(6)
    line.took = even(0.1)
    assert line.read(4) == [64, 512, 512, 512]


def test_a_line_that_grows_costs_no_more_than_its_growth() -> None:
    pace, read = Pace(512), 0
    Line(pace, even(0.1)).read(4)

    def took(tokens: int) -> float:
        return tokens * (0.1 + read / 4096)

    line, waits = Line(pace, took), []
    while read < 16384:
        size = line.chunk()
        waits.append(took(size))
        read += size
    assert max(waits) < 2 * BUDGET


def test_a_long_line_does_not_slow_a_short_one_that_is_read_in_turn() -> None:
    pace = Pace(512)
    short, long = Line(pace, even(0.3)), Line(pace, even(4.8))
    made = [(short.chunk(), long.chunk()) for _ in range(60)]
    assert set(made[6:]) == {(512, 32)}


def test_what_was_long_ago_says_nothing() -> None:
    pace = Pace(512)
    for _ in range(2):
        pace.measured(512, 100.0, Slowness())
    for _ in range(200):
        pace.measured(64, 128.0, Slowness())
    assert pace.chunk(BUDGET, Slowness()) == 64


def test_odd_ends_of_prompts_count_as_the_size_below() -> None:
    pace = Pace(512)
    pace.measured(100, 200.0, Slowness())
    assert pace.chunk(BUDGET, Slowness()) == 64


def test_what_is_smaller_than_the_least_says_nothing() -> None:
    pace = Pace(512)
    slow = Slowness(2.5, 3.0)
    assert pace.measured(3, 600.0, slow) == slow
    assert pace.chunk(1.0, slow) == 512


def test_a_context_of_tiny_batches_has_one_size() -> None:
    assert Line(Pace(8), even(100.0), budget=1.0).read(3) == [8, 8, 8]


@given(costs, budgets)
def test_nothing_known_to_be_within_the_budget_is_larger(
    known: Mapping[int, Cost], budget: float
) -> None:
    size = best_size(SIZES, known, budget)
    sure = {each: cost.ms for each, cost in known.items() if cost.sure}
    assert all(each <= size for each, ms in sure.items() if ms <= budget)
    if size in sure and sure[size] > budget:
        assert sure[size] == min(sure.values())


@given(st.fixed_dictionaries({size: st.floats(0.1, 1e4) for size in SIZES}), budgets)
def test_whatever_chunks_take_one_size_is_settled_on(took: dict[int, float], budget: float) -> None:
    made = Line(Pace(512), took.__getitem__, budget).read(40)
    assert len(set(made[3 * len(SIZES) :])) == 1
    settled, tried = made[-1], set(made)
    if took[settled] > budget:
        assert took[settled] == min(took[size] for size in tried)
    else:
        assert settled == max(size for size in tried if took[size] <= budget)


@given(st.integers(1, 3000), st.lists(st.tuples(st.integers(1, 3000), st.floats(1e-3, 1e5))))
def test_a_chunk_is_never_longer_than_a_batch_nor_shorter_than_the_least(
    most: int, seen: list[tuple[int, float]]
) -> None:
    pace, slowness = Pace(most), Slowness()
    for tokens, ms in seen:
        slowness = pace.measured(min(tokens, most), ms, slowness)
        assert slowness.factor > 0
        assert min(most, LEAST_CHUNK) <= pace.chunk(BUDGET, slowness) <= most
