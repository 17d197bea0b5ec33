"""Which chunk is evaluated beside streams, for machines of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.pace import LEAST_CHUNK, Pace, best_size

SIZES = (16, 32, 64, 128, 256, 512)
costs = st.dictionaries(st.sampled_from(SIZES), st.floats(0.1, 1e5), min_size=1)
budgets = st.floats(0.0, 1e4)


def chunks(pace: Pace, took: Callable[[int], float], count: int, budget: float) -> list[int]:
    made = []
    for _ in range(count):
        made.append(pace.chunk(budget))
        pace.measured(made[-1], took(made[-1]))
    return made


def tiled(tokens: int) -> float:
    """Milliseconds on a CPU whose attention is quick for whole tiles of 64 queries only."""
    whole, rest = divmod(tokens, 64)
    return 200.0 * whole + 20.0 * rest


def test_before_anything_is_measured_a_chunk_is_whole() -> None:
    assert Pace(512).chunk(1.0) == 512


def test_a_machine_of_an_even_rate_fills_its_budget() -> None:
    pace = Pace(512)
    assert chunks(pace, lambda tokens: 2.0 * tokens, 4, 160.0) == [512, 64, 64, 64]


def test_a_quick_machine_reads_whole_batches() -> None:
    assert set(chunks(Pace(512), lambda tokens: 0.1 * tokens, 9, 160.0)) == {512}


def test_where_small_chunks_take_longer_than_a_tile_the_tile_is_settled_on() -> None:
    made = chunks(Pace(512), tiled, 20, 160.0)
    assert made[:2] == [512, 32]
    assert set(made[2:]) == {64}


def test_where_nothing_fits_the_quickest_is_taken() -> None:
    made = chunks(Pace(512), lambda tokens: 400.0 + tokens, 20, 160.0)
    assert set(made[len(SIZES) :]) == {LEAST_CHUNK}


def test_one_hiccup_of_the_machine_changes_one_chunk() -> None:
    pace = Pace(512)
    chunks(pace, lambda tokens: 2.0 * tokens, 4, 160.0)
    pace.measured(64, 5000.0)
    assert pace.chunk(160.0) == 64


def test_a_machine_that_gets_slower_is_followed() -> None:
    pace = Pace(512)
    chunks(pace, lambda tokens: 2.0 * tokens, 4, 160.0)
    assert chunks(pace, lambda tokens: 4.0 * tokens, 4, 160.0)[-1] == 32


def test_a_machine_that_gets_faster_is_followed_in_time() -> None:
    pace = Pace(512)
    chunks(pace, lambda tokens: 2.0 * tokens, 4, 160.0)
    assert chunks(pace, lambda tokens: 0.1 * tokens, 300, 160.0)[-1] == 512


def test_odd_ends_of_prompts_count_as_the_size_below() -> None:
    pace = Pace(512)
    pace.measured(100, 200.0)
    assert pace.chunk(160.0) == 64
    pace.measured(3, 6.0)
    assert pace.chunk(40.0) == 16


def test_a_context_of_tiny_batches_has_one_size() -> None:
    pace = Pace(8)
    assert chunks(pace, lambda tokens: 100.0 * tokens, 3, 1.0) == [8, 8, 8]


@given(costs, budgets)
def test_nothing_known_to_be_within_the_budget_is_larger(
    took: Mapping[int, float], budget: float
) -> None:
    size = best_size(SIZES, took, budget)
    assert all(known <= size for known, ms in took.items() if ms <= budget)
    if size in took and took[size] > budget:
        assert took[size] == min(took.values())


@given(st.fixed_dictionaries({size: st.floats(0.1, 1e4) for size in SIZES}), budgets)
def test_whatever_chunks_take_one_size_is_settled_on(took: dict[int, float], budget: float) -> None:
    pace = Pace(512)
    made = chunks(pace, took.__getitem__, 30, budget)
    assert len(set(made[2 * len(SIZES) :])) == 1
    settled, tried = made[-1], set(made)
    if took[settled] > budget:
        assert took[settled] == min(took[size] for size in tried)
    else:
        assert settled == max(size for size in tried if took[size] <= budget)


@pytest.mark.parametrize("most", [16, 100, 512, 2048])
def test_a_chunk_is_never_longer_than_a_batch(most: int) -> None:
    made = chunks(Pace(most), lambda tokens: 1.0 * tokens, 40, 150.0)
    assert max(made) <= most
