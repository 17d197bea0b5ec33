"""llama.cpp's sampler chain does what the request asks for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from sessiond.engine.memory import Tokens, as_tokens
from sessiond.engine.sampling import Sampling
from tests.engine.worlds import LINE, Bench, Shape, World

GREEDY = Sampling(temperature=0)
HOT = Sampling(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture
def bench(smol: World) -> Iterator[Bench]:
    """A context whose last logits follow a sentence."""
    bench = smol.open(Shape(n_ctx=256))
    bench.context.decode(as_tokens(SENTENCE), 0, LINE, logits=True)
    yield bench


SENTENCE = (504, 4837, 282, 4649, 314)


def draw(bench: Bench, sampling: Sampling, count: int = 1, history: Tokens | None = None) -> int:
    """The last of `count` draws from the same logits."""
    return draws(bench, sampling, count, history)[-1]


def draws(bench: Bench, sampling: Sampling, count: int, history: Tokens | None = None) -> list[int]:
    sampler = bench.context.sampler(sampling, as_tokens([]) if history is None else history)
    try:
        return [sampler.sample(-1) for _ in range(count)]
    finally:
        sampler.close()


def ranked(bench: Bench) -> list[int]:
    return np.argsort(-bench.context.logits(-1), kind="stable").tolist()


def test_temperature_zero_takes_the_likeliest(bench: Bench) -> None:
    before = bench.context.logits(-1).copy()
    assert draws(bench, GREEDY, 3) == [ranked(bench)[0]] * 3
    assert np.array_equal(bench.context.logits(-1), before), "sampling leaves the logits alone"


def test_top_k_one_takes_the_likeliest(bench: Bench) -> None:
    sampling = Sampling(temperature=5.0, top_k=1, top_p=1.0, min_p=0.0, seed=3)
    assert draws(bench, sampling, 5) == [ranked(bench)[0]] * 5


def test_top_k_draws_only_from_the_likeliest(bench: Bench) -> None:
    sampling = Sampling(temperature=50.0, top_k=3, top_p=1.0, min_p=0.0, seed=3)
    assert set(draws(bench, sampling, 100)) == set(ranked(bench)[:3])


@pytest.mark.parametrize("cut", [{"top_p": 1e-6}, {"min_p": 1.0}])
def test_top_p_and_min_p_cut_the_tail(bench: Bench, cut: dict[str, float]) -> None:
    options = {"top_p": 1.0, "min_p": 0.0} | cut
    sampling = Sampling(temperature=5.0, top_k=0, seed=3, **options)
    assert draws(bench, sampling, 5) == [ranked(bench)[0]] * 5


def test_the_same_seed_draws_the_same_tokens(bench: Bench) -> None:
    def seeded(seed: int | None) -> list[int]:
        return draws(bench, Sampling(temperature=2.0, top_k=0, top_p=1, min_p=0, seed=seed), 20)

    assert seeded(7) == seeded(7)
    assert seeded(7) != seeded(8)
    assert seeded(None) != seeded(None)


def test_temperature_spreads_the_draws(bench: Bench) -> None:
    def different(temperature: float) -> int:
        sampling = Sampling(temperature, top_k=0, top_p=1.0, min_p=0.0, seed=1)
        return len(set(draws(bench, sampling, 60)))

    assert different(0.2) < different(1.0) < different(3.0)


def test_a_bias_forces_and_forbids(bench: Bench) -> None:
    best, second, *_, worst = ranked(bench)
    assert draw(bench, Sampling(temperature=0, logit_bias=((worst, 1000.0),))) == worst
    assert draw(bench, Sampling(temperature=0, logit_bias=((best, -math.inf),))) == second
    forced = Sampling(temperature=1.0, seed=1, logit_bias=((worst, 1000.0), (best, -100.0)))
    assert draws(bench, forced, 5) == [worst] * 5


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_bias_for_no_token_changes_nothing(bench: Bench, token: int) -> None:
    assert draw(bench, Sampling(temperature=0, logit_bias=((token, 50.0),))) == ranked(bench)[0]


@pytest.mark.parametrize(
    "penalty", [{"repeat_penalty": 1e6}, {"presence_penalty": 1e3}, {"frequency_penalty": 1e3}]
)
def test_penalties_turn_away_from_what_was_said(bench: Bench, penalty: dict[str, float]) -> None:
    best, second, third, *_ = ranked(bench)
    sampling = Sampling(temperature=0, **penalty)
    said = as_tokens([best])
    assert draw(bench, GREEDY, history=said) == best
    assert draw(bench, sampling, history=said) != best
    chosen = draws(bench, sampling, 3)
    assert Counter(chosen).most_common(1)[0][1] == 1, "its own draws count, too"
    assert {chosen[0]} == {best} and len({second, third} & set(chosen)) >= 1


def test_penalties_look_back_only_so_far(bench: Bench) -> None:
    best, other, *_ = ranked(bench)
    history = as_tokens([best] + [other + 1] * 4)
    near = Sampling(temperature=0, presence_penalty=1e3, repeat_last_n=4)
    far = Sampling(temperature=0, presence_penalty=1e3, repeat_last_n=5)
    off = Sampling(temperature=0, presence_penalty=1e3, repeat_last_n=0)
    assert draw(bench, near, history=history) == best
    assert draw(bench, far, history=history) != best
    assert draw(bench, off, history=history) == best
