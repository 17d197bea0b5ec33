"""Reads and verifies the next states while the consumer uses the current one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from itertools import islice

AHEAD = 3
"""How many states are read ahead; one more is in the consumer's hands."""


def read_ahead(
    pool: Executor, read: Callable[[str], memoryview], keys: Iterable[str]
) -> Iterator[memoryview]:
    """The states in order. An error is raised in the place of its state.

    No read is left running after an error or when the iterator is closed early."""
    coming = iter(keys)
    running: deque[Future[memoryview]] = deque()
    try:
        running.extend(pool.submit(read, key) for key in islice(coming, AHEAD))
        while running:
            payload = running.popleft().result()
            running.extend(pool.submit(read, key) for key in islice(coming, 1))
            yield payload
    finally:
        for future in running:
            future.cancel()
        wait(running)
