"""Blocks after the same parent, by their tokens: those with most in common stand side by side.

A front that many sessions share has a block for each of them after it. Which of them goes on like a
given prompt, or is the beginning of it, is found among a few without a look at all the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

Child = tuple[bytes, str]
FEW = 64
"""So many are read each time they are wanted; more are kept."""
KEPT = 1 << 15
"""Blocks that are kept at most, of all families together, at 1.2 kB each."""
_TOKEN = 4


class Siblings:
    """Tokens are bytes as in `Identity`."""

    def __init__(self, children: Iterable[tuple[str, bytes]]) -> None:
        self._sorted: list[Child] = sorted((tokens, key) for key, tokens in children)
        self._tokens = {key: tokens for tokens, key in self._sorted}

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, key: str) -> bool:
        return key in self._tokens

    def add(self, key: str, tokens: bytes) -> None:
        if key not in self._tokens:
            self._tokens[key] = tokens
            insort(self._sorted, (tokens, key))

    def discard(self, key: str) -> None:
        tokens = self._tokens.pop(key, None)
        if tokens is not None:
            del self._sorted[bisect_left(self._sorted, (tokens, key))]

    def nearest(self, tokens: bytes) -> Iterator[tuple[str, int]]:
        """Keys, and how many tokens each has in common with `tokens`: most first, none left out
        that has any.
        """
        right = bisect_left(self._sorted, (tokens, ""))
        left = right - 1
        before, after = self._common(left, tokens), self._common(right, tokens)
        while before or after:
            if after >= before:
                yield self._sorted[right][1], after
                right += 1
                after = self._common(right, tokens)
            else:
                yield self._sorted[left][1], before
                left -= 1
                before = self._common(left, tokens)

    def extending(self, tokens: bytes) -> Iterator[str]:
        """Keys of those that begin with `tokens`."""
        for at in range(bisect_left(self._sorted, (tokens, "")), len(self._sorted)):
            found, key = self._sorted[at]
            if not found.startswith(tokens):
                return
            yield key

    def beginning(self, tokens: bytes) -> list[str]:
        """Keys of those that `tokens` begins with and goes beyond."""
        keys: list[str] = []
        for stop in range(_TOKEN, len(tokens), _TOKEN):
            at = bisect_left(self._sorted, (tokens[:stop], ""))
            if at == len(self._sorted):
                break
            found, key = self._sorted[at]
            if found == tokens[:stop]:
                keys.append(key)
        return keys

    def tokens(self, key: str) -> bytes:
        return self._tokens[key]

    def _common(self, at: int, tokens: bytes) -> int:
        if not 0 <= at < len(self._sorted):
            return 0
        return common(self._sorted[at][0], tokens)


class Families:
    """The large families among those looked at last. Follows what is added and removed."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, Siblings] = OrderedDict()

    def of(self, parent: str, read: Callable[[], Iterable[tuple[str, bytes]]]) -> Siblings:
        if parent in self._of:
            self._of.move_to_end(parent)
            return self._of[parent]
        family = Siblings(read())
        if FEW < len(family) <= KEPT:
            self._of[parent] = family
            while sum(map(len, self._of.values())) > KEPT:
                self._of.popitem(last=False)
        return family

    def added(self, parent: str, key: str, tokens: bytes) -> None:
        if parent in self._of:
            self._of[parent].add(key, tokens)

    def removed(self, keys: Iterable[str]) -> None:
        for key in keys:
            for family in self._of.values():
                family.discard(key)

    def clear(self) -> None:
        self._of.clear()


def common(one: bytes, other: bytes) -> int:
    """Tokens that both begin with."""
    low, high = 0, min(len(one), len(other)) // _TOKEN
    if one[: high * _TOKEN] == other[: high * _TOKEN]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[: middle * _TOKEN] == other[: middle * _TOKEN]:
            low = middle
        else:
            high = middle
    return low
