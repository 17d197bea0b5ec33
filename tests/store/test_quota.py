from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessiond.store.quota import Candidate, removable, victims


@st.composite
def stores(draw: st.DrawFn) -> list[Candidate]:
    """A forest: each state's parent is an earlier one, or none that is stored."""
    count = draw(st.integers(0, 25))
    parents = [draw(st.integers(-1, index - 1)) for index in range(count)]
    return [
        Candidate(
            key=f"k{index}",
            parent=f"k{parents[index]}",
            bytes=draw(st.integers(1, 100)),
            last_used=draw(st.integers(0, 30)),
            children=parents.count(index),
        )
        for index in range(count)
    ]


held_keys = st.sets(st.integers(0, 24).map(lambda index: f"k{index}"), max_size=5)


@given(stores(), st.integers(-10, 1500), held_keys)
def test_enough_is_freed_and_no_more_than_needed(
    store: list[Candidate], need: int, held: set[str]
) -> None:
    chosen = victims(store, need, held)
    if chosen is None:
        assert sum(c.bytes for c in removable(store, held)) < need
        return
    assert sum(c.bytes for c in chosen) >= need
    assert not chosen or sum(c.bytes for c in chosen[:-1]) < need


@given(stores(), held_keys)
def test_children_go_before_parents_and_held_ones_stay(
    store: list[Candidate], held: set[str]
) -> None:
    order = [c.key for c in removable(store, held)]
    gone: set[str] = set()
    for key in order:
        assert key not in held
        assert {c.key for c in store if c.parent == key} <= gone
        gone.add(key)
    for candidate in store:
        below = {c.key for c in store if c.parent == candidate.key}
        stays = candidate.key in held or bool(below - gone)
        assert stays == (candidate.key not in gone)


@given(stores(), held_keys)
def test_of_what_may_go_the_least_recently_used_goes_first(
    store: list[Candidate], held: set[str]
) -> None:
    gone: set[str] = set()
    for candidate in removable(store, held):
        free = [
            c
            for c in store
            if c.key not in gone | held
            and not {child.key for child in store if child.parent == c.key} - gone
        ]
        assert candidate == min(free, key=lambda c: (c.last_used, c.key))
        gone.add(candidate.key)


@given(stores(), st.integers(1, 1500), held_keys, st.integers(0, 25))
def test_the_oldest_part_of_a_store_gives_the_same_answer_or_none(
    store: list[Candidate], need: int, held: set[str], count: int
) -> None:
    oldest = sorted(store, key=lambda c: (c.last_used, c.key))[:count]
    assert victims(oldest, need, held) in (None, victims(store, need, held))
