"""Which states go when room is needed: least recently used first, children before parents. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """`children` counts all stored states whose parent is this one, candidates or not."""

    key: str
    parent: str
    bytes: int
    last_used: int
    children: int


def removable(candidates: Iterable[Candidate], held: Collection[str]) -> Iterator[Candidate]:
    """Candidates in the order in which they may be removed.

    Never one of `held`, never one before all its children. Ties go by key."""
    known = {candidate.key: candidate for candidate in candidates}
    children = {key: candidate.children for key, candidate in known.items()}
    ready = [(c.last_used, key) for key, c in known.items() if not c.children and key not in held]
    heapq.heapify(ready)
    while ready:
        candidate = known[heapq.heappop(ready)[1]]
        yield candidate
        parent = known.get(candidate.parent)
        if parent is None:
            continue
        children[parent.key] -= 1
        if not children[parent.key] and parent.key not in held:
            heapq.heappush(ready, (parent.last_used, parent.key))


def least(candidates: Iterable[Candidate], need: int, held: Collection[str]) -> list[Candidate]:
    """What to remove to free `need` bytes, or as many as can be."""
    chosen: list[Candidate] = []
    for candidate in removable(candidates, held):
        if need <= 0:
            break
        chosen.append(candidate)
        need -= candidate.bytes
    return chosen


def victims(
    candidates: Iterable[Candidate], need: int, held: Collection[str]
) -> tuple[Candidate, ...] | None:
    """What to remove to free at least `need` bytes; None when that cannot be done.

    Given the n least recently used of all states, an answer is the one all of them would give."""
    if need <= 0:
        return ()
    chosen = least(candidates, need, held)
    return tuple(chosen) if sum(candidate.bytes for candidate in chosen) >= need else None
