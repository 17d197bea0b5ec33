"""How much of a prompt is evaluated at once beside streams that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_CHUNK = 16
TILE = 64
"""Queries that llama.cpp's flash attention on a CPU computes together (ggml-cpu/ops.cpp). Fewer are
computed one by one, which can take longer than all of them (`scripts/bench_attention`)."""
_RECENT = 128
"""Chunks, after which what one of a size took says nothing any more."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What chunks of a size take, in milliseconds. Not `sure`: seen once, which may have been a
    hiccup.
    """

    ms: float
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Slowness:
    """Of a line, that of its last two chunks: how much longer they took than they cost others."""

    now: float = 1.0
    before: float = 1.0

    @property
    def factor(self) -> float:
        """The smaller one: a chunk that took long once may have been a hiccup."""
        return min(self.now, self.before)

    def then(self, now: float) -> Slowness:
        return Slowness(now, self.now)


@dataclass(frozen=True, slots=True)
class _Known:
    cost: Cost
    at: int


class Pace:
    """What chunks of each size take, learned from all lines. Engine thread only.

    A smaller chunk need not take less time, so sizes are measured, not only their rate. The longer
    a line, the longer its chunks take, whatever their size: that is its slowness.
    """

    def __init__(self, most: int) -> None:
        """`most` tokens are one chunk at most."""
        self._most = most
        self._sizes = _sizes(most)
        self._known: dict[int, _Known] = {}
        self._count = 0

    def measured(self, tokens: int, ms: float, slowness: Slowness) -> Slowness:
        """A chunk of so many `tokens`, of a line of that slowness, took so long. Its slowness now.

        A chunk smaller than the least is mostly what every chunk costs, and says nothing.
        """
        size = max((size for size in self._sizes if size <= tokens), default=0)
        if not size or ms <= 0:
            return slowness
        self._count += 1
        took = ms * size / tokens
        cost = self._recent().get(size)
        if cost is not None and cost.sure:
            self._known[size] = _Known(cost, self._count)
            return slowness.then(took / cost.ms)
        lately = took / slowness.factor
        learned = Cost(min(cost.ms, lately)) if cost else Cost(lately, sure=False)
        self._known[size] = _Known(learned, self._count)
        return slowness

    def chunk(self, budget_ms: float, slowness: Slowness) -> int:
        """The most tokens that the next chunk of a line may have beside a waiting stream; a whole
        batch while nothing was measured.
        """
        recent = self._recent()
        if not recent:
            return self._most
        return best_size(self._sizes, recent, budget_ms / slowness.factor)

    def _recent(self) -> dict[int, Cost]:
        oldest = self._count - _RECENT
        return {size: known.cost for size, known in self._known.items() if known.at > oldest}


def best_size(sizes: tuple[int, ...], costs: Mapping[int, Cost], budget_ms: float) -> int:
    """The largest of `sizes` expected within the budget; the quickest if none is, of equals the
    largest. `costs` has what is known. What is not is expected to be cheap, and so gets tried.
    """
    expected = {size: _expected(size, costs) for size in sizes}
    within = [size for size in sizes if expected[size] <= budget_ms]
    return max(within) if within else min(sizes, key=lambda size: (expected[size], -size))


def _expected(size: int, costs: Mapping[int, Cost]) -> float:
    own = costs.get(size)
    if own is not None and own.sure:
        return own.ms
    others = {known: cost.ms for known, cost in costs.items() if known != size}
    if size == TILE and others and max(others) < TILE:
        return min(others.values())
    below = max((known for known in others if known < size), default=size)
    above = min((known for known in others if known > size), default=size)
    guesses = [others[near] * size / near for near in {below, above} - {size}]
    return min([*guesses, own.ms] if own else guesses)


def _sizes(most: int) -> tuple[int, ...]:
    """Powers of two from the smallest chunk, and `most`."""
    sizes = [most]
    size = LEAST_CHUNK
    while size < most:
        sizes.append(size)
        size *= 2
    return tuple(sorted(sizes))
