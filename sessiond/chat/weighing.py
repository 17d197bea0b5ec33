"""What one rendering of a template may use: processor time, and how much it makes and nests.

Lists, tuples and objects are weighed as if they were written out: one that holds another twice
has twice its weight, and comparing or printing it takes as long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

CPU_S = 2.0
"""Processor time of one rendering."""
LONGEST = 8 << 20
"""Characters of a text that a template makes; a list counts ITEM for each entry. A rendering of
much more is let to make twice what it was given.
"""
HEAVIEST = 32 << 20
"""Of what a template nests; four times what it was given, where that is more."""
MOST_MADE = 4 << 30
"""Of everything that a rendering makes, most of it gone again; 1024 times what it was given, where
that is more.
"""
DEEPEST = 200
ITEM = 8
_LOOK_EVERY = 64

_Weight = tuple[int, int]
"""Characters and items as written out; how many containers are around the innermost."""


class Work:
    """One rendering's."""

    def __init__(self, given: object) -> None:
        self.until = time.thread_time() + CPU_S
        self._given = given
        self._given_size: int | None = None
        self._made = 0
        self._known: dict[int, tuple[object, _Weight]] = {}

    def check(self, size: int) -> None:
        if size > LONGEST and size > self._share(LONGEST, 2):
            raise SecurityError(f"it makes more than {LONGEST >> 20} MiB of text")

    def make(self, size: int) -> None:
        """Something of this size is about to be made, or has been."""
        self.check(size)
        self.use(size)

    def use(self, size: int) -> None:
        """So much is about to be copied in all."""
        self._made += size
        if self._made > MOST_MADE and self._made > self._share(MOST_MADE, 1024):
            raise SecurityError(f"it makes more than {MOST_MADE >> 30} GiB in all")

    def weigh(self, value: Any) -> _Weight:
        """Of a container only once, except for what is appended to it."""
        if isinstance(value, str):
            return len(value) + ITEM, 0
        if isinstance(value, Namespace):
            raise SecurityError("it puts a namespace into something else")
        if not isinstance(value, (list, tuple, dict)):
            return ITEM, 0
        known = self._known.get(id(value))
        if known is None:
            check_time()
            inside = value if not isinstance(value, dict) else _flat(value)
            known = self._know(value, self._sum(inside))
        return known[1]

    def weigh_all(self, values: Iterable[Any]) -> int:
        """As if they were in a list."""
        return self._sum(values)[0]

    def append(self, container: list[Any], value: Any) -> None:
        """`value` is about to be appended."""
        self._know(container, self._sum((value,), self.weigh(container)))

    def add(self, left: Any, right: Any) -> _Weight:
        """Two lists or tuples are about to be made one."""
        (one, deep), (other, deeper) = self.weigh(left), self.weigh(right)
        self._check_weight(one + other)
        return one + other, max(deep, deeper)

    def repeat(self, value: Any, count: int) -> _Weight:
        """A list or tuple is about to be repeated."""
        weight, depth = self.weigh(value)
        self._check_weight(weight * max(count, 0))
        return weight * max(count, 0), depth

    def learn(self, value: object, weight: _Weight) -> None:
        """The weight of what was just made."""
        self._know(value, weight)

    def _sum(self, inside: Iterable[Any], before: _Weight = (ITEM, 0)) -> _Weight:
        weight, depth = before
        for one in inside:
            more, deep = self.weigh(one)
            weight, depth = weight + more, max(depth, deep + 1)
            self._check_weight(weight)
        if depth > DEEPEST:
            raise SecurityError(f"it nests more than {DEEPEST} lists")
        return weight, depth

    def _check_weight(self, weight: int) -> None:
        if weight > HEAVIEST and weight > self._share(HEAVIEST, 4):
            raise SecurityError(f"it nests more than {HEAVIEST >> 20} MiB")

    def _share(self, least: int, times: int) -> int:
        if self._given_size is None:
            self._given_size = _size(self._given)
        return max(least, times * self._given_size)

    def _know(self, value: object, weight: _Weight) -> tuple[object, _Weight]:
        # The object itself is kept, so that no other one gets its id.
        known = self._known[id(value)] = (value, weight)
        return known


_work: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def metered(given: object) -> Iterator[None]:
    """A rendering of `given` in this thread: all budgets begin anew."""
    token = _work.set(Work(given))
    try:
        yield
    finally:
        _work.reset(token)


def work() -> Work:
    return _work.get() or Work(())


def check_time() -> None:
    now = _work.get()
    if now is not None and time.thread_time() > now.until:
        raise SecurityError(f"it takes more than {CPU_S:g} s of processor time")


def timed(items: Iterable[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        if not number % _LOOK_EVERY:
            check_time()
        yield item


def _flat(value: dict[Any, Any]) -> Iterator[Any]:
    for pair in value.items():
        yield from pair


def _size(given: object) -> int:
    """Characters and items, as `Work.weigh` counts them, of what has no limits here."""
    size, left = 0, [given]
    while left:
        one = left.pop()
        size += ITEM
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, Mapping):
            left += _flat(dict(one))
        elif isinstance(one, Sequence):
            left += one
    return size
