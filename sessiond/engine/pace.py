"""How much of a prompt is evaluated at once beside streams that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

LEAST_CHUNK = 16
_RECENT = 128
"""Chunks, after which what one of a size took says nothing any more: lines have grown since."""


class Pace:
    """What chunks of each size took. Engine thread only.

    A smaller chunk need not take less time: llama.cpp's flash attention on a CPU takes longer for
    32 tokens than for 64 (`scripts/bench_attention`). So sizes are measured, not only their rate.
    """

    def __init__(self, most: int) -> None:
        """`most` tokens are one chunk at most."""
        self._most = most
        self._sizes = _sizes(most)
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._count = 0

    def measured(self, tokens: int, ms: float) -> None:
        """A chunk of so many `tokens` took so long."""
        size = max((size for size in self._sizes if size <= tokens), default=self._sizes[0])
        self._count += 1
        seen = self._seen.setdefault(size, deque(maxlen=2))
        seen.append((self._count, ms * size / max(tokens, 1)))

    def chunk(self, budget_ms: float) -> int:
        """The most tokens that a chunk beside a waiting stream may have; all while nothing was
        measured.
        """
        recent = {
            size: min(ms for _, ms in seen)
            for size, seen in self._seen.items()
            if self._count - seen[-1][0] < _RECENT
        }
        return best_size(self._sizes, recent, budget_ms) if recent else self._most


def best_size(sizes: tuple[int, ...], took_ms: Mapping[int, float], budget_ms: float) -> int:
    """The largest of `sizes` within the budget; the quickest if none is, of equals the largest.

    `took_ms` has what is known. What is not is taken to be as cheap for each token as its
    neighbours on both sides that are known, the cheaper of them, and so gets tried.
    """
    expected = {size: _expected(size, took_ms) for size in sizes}
    within = [size for size in sizes if expected[size] <= budget_ms]
    return max(within) if within else min(sizes, key=lambda size: (expected[size], -size))


def _expected(size: int, took_ms: Mapping[int, float]) -> float:
    if size in took_ms:
        return took_ms[size]
    below = max((known for known in took_ms if known < size), default=None)
    above = min((known for known in took_ms if known > size), default=None)
    return min(took_ms[known] * size / known for known in (below, above) if known is not None)


def _sizes(most: int) -> tuple[int, ...]:
    """Powers of two from the smallest chunk, and `most`."""
    sizes = [most]
    size = LEAST_CHUNK
    while size < most:
        sizes.append(size)
        size *= 2
    return tuple(sorted(sizes))
