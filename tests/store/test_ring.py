"""The ring holds what is complete and verified, within its budget, and finds it by its tokens."""

from __future__ import annotations

import mmap
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.errors import StateDamaged, StateMissing, StoreCorrupt
from sessiond.metrics import REGISTRY
from sessiond.store import slabs
from sessiond.store.chain import chain_keys, root_key, snapshot_key
from sessiond.store.loss import Rank
from sessiond.store.ring import Ring
from sessiond.store.ring_entry import Refusal
from sessiond.store.slabs import PAGE
from tests.store.rings import bytes_of, published, reserved
from tests.store.samples import line, open_store, payload


def test_what_is_published_is_found_and_read() -> None:
    ring, tokens = Ring(4 * PAGE), line(700)
    key = published(ring, tokens[:600], Rank.END, line="talk")
    (entry,) = ring.find("", tokens)
    assert (entry.key, entry.position, entry.bytes) == (key, 600, PAGE)
    assert (entry.rank, entry.line) == (Rank.END, "talk")
    with ring.lease(key) as view:
        assert bytes(view) == bytes_of(key, PAGE)
        assert view.readonly
    ring.check_integrity(deep=True)


def test_keys_are_those_of_the_store(tmp_path) -> None:  # type: ignore[no-untyped-def]
    store = open_store(tmp_path, owner="key-1")
    store.put_snapshot(line(300), payload())
    (stored,) = store.lookup(line(300)).snapshots
    store.close()
    ring = Ring(PAGE, fingerprint="model-a")
    assert reserved(ring, line(300), owner="key-1").key == stored.key


def test_nothing_is_visible_before_it_is_published() -> None:
    ring, tokens = Ring(4 * PAGE), line(300)
    reservation = reserved(ring, tokens)
    assert ring.find("", tokens) == ring.entries() == []
    assert ring.stats().entries == 0
    with pytest.raises(StateMissing), ring.lease(reservation.key):
        pass
    assert ring.stats().bytes == PAGE
    ring.withdraw(reservation)
    assert ring.find("", tokens) == []
    ring.check_integrity()


def test_less_than_was_reserved_can_be_published() -> None:
    ring = Ring(4 * PAGE)
    reservation = reserved(ring, line(10), size=3 * PAGE - 5)
    assert len(reservation.buffer) == 3 * PAGE - 5
    reservation.buffer[:4] = b"1234"
    ring.publish(reservation, 4)
    with ring.lease(reservation.key) as view:
        assert bytes(view) == b"1234"
    assert ring.stats().bytes == 3 * PAGE


@pytest.mark.parametrize("size", [0, -1, PAGE + 1])
def test_a_size_that_was_not_reserved_is_refused_and_the_reservation_stays(size: int) -> None:
    ring = Ring(4 * PAGE)
    reservation = reserved(ring, line(10))
    with pytest.raises(ValueError, match="cannot be published"):
        ring.publish(reservation, size)
    assert ring.publish(reservation, PAGE)


def test_a_reservation_ends_once() -> None:
    ring = Ring(4 * PAGE)
    reservation = reserved(ring, line(10))
    ring.publish(reservation, PAGE)
    ring.withdraw(reservation)
    assert len(ring.entries()) == 1
    with pytest.raises(ValueError, match="cannot be published"):
        ring.publish(reservation, PAGE)
    with pytest.raises(ValueError, match="published or withdrawn"):
        _ = reservation.buffer
    other = reserved(ring, line(20))
    ring.withdraw(other)
    ring.withdraw(other)
    ring.check_integrity()


@pytest.mark.parametrize(("size", "length"), [(0, 5), (-3, 5), (5, 0)])
def test_an_empty_snapshot_is_no_snapshot(size: int, length: int) -> None:
    with pytest.raises(ValueError, match="no snapshot"):
        Ring(PAGE).reserve("", "a", line(length), Rank.STEP, size)


def test_only_beginnings_of_the_same_owner_are_found_lowest_first() -> None:
    ring, tokens = Ring(100 * PAGE), line(1000)
    other = tokens.copy()
    other[500] += 1
    for position in (900, 256, 1, 512, 500, 501, 255, 257):
        published(ring, tokens[:position])
    published(ring, other[:501])
    published(ring, other[:600])
    published(ring, tokens[:400], owner="someone else")
    assert [e.position for e in ring.find("", tokens[:899])] == [1, 255, 256, 257, 500, 501, 512]
    assert [e.position for e in ring.find("", other)] == [1, 255, 256, 257, 500, 501, 600]
    assert [e.position for e in ring.find("someone else", tokens)] == [400]
    assert ring.find("", line(1000, seed=9)) == []


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 700)), max_size=12), st.integers(0, 700)
)
def test_find_is_the_comparison_of_all_tokens(held: list[tuple[int, int]], length: int) -> None:
    base = line(700)
    texts = [
        base,
        np.concatenate((base[:256], line(444, 1))),
        np.concatenate((base[:300], base[:400])),
    ]
    ring = Ring(100 * PAGE)
    for text, position in set(held):
        ring.reserve("", "a", texts[text][:position], Rank.STEP, PAGE)
    pending = Ring(100 * PAGE)
    wanted = texts[0][:length]
    for text, position in held:
        if (
            r := pending.reserve("", "a", texts[text][:position], Rank.STEP, PAGE)
        ) and not isinstance(r, Refusal):
            pending.publish(r, 1)
    expected = {p for t, p in held if p <= length and np.array_equal(texts[t][:p], wanted[:p])}
    assert [entry.position for entry in pending.find("", wanted)] == sorted(expected)
    assert ring.find("", wanted) == []


def test_the_same_beginning_is_held_once_and_its_rank_only_rises() -> None:
    ring, front = Ring(4 * PAGE), line(300)
    key = published(ring, front, Rank.FRONT, line="a")
    assert ring.reserve("", "b", front, Rank.STEP, PAGE) is Refusal.PRESENT
    (entry,) = ring.entries()
    assert (entry.key, entry.rank, entry.line) == (key, Rank.FRONT, "a")
    assert ring.stats().refused == Counter()


def test_what_several_lines_go_on_from_goes_with_the_last_of_them() -> None:
    ring, front = Ring(4 * PAGE), line(300)
    key = published(ring, front, Rank.FRONT, line="a")
    ring.reserve("", "b", front, Rank.FRONT, PAGE)
    with ring.lease(key, "c"):
        pass
    assert ring.drop_line(lambda name: name in ("a", "b")) == 0
    assert [entry.line for entry in ring.find("", front)] == ["c"]
    assert ring.drop_line(lambda name: name == "c") == 1
    assert ring.find("", front) == []


def test_a_capture_that_is_on_its_way_is_not_taken_twice() -> None:
    ring = Ring(4 * PAGE)
    reservation = reserved(ring, line(10), Rank.STEP)
    assert ring.reserve("", "a", line(10), Rank.END, PAGE) is Refusal.PRESENT
    ring.publish(reservation, PAGE)
    assert ring.entries()[0].rank is Rank.END


def test_a_repeated_capture_counts_as_used() -> None:
    ring = Ring(2 * PAGE)
    published(ring, line(200, 1), line="a")
    published(ring, line(200, 2), line="b")
    assert ring.reserve("", "a", line(200, 1), Rank.STEP, PAGE) is Refusal.PRESENT
    published(ring, line(200, 3), line="c")
    assert {entry.line for entry in ring.entries()} == {"a", "c"}


def test_a_lease_counts_as_use() -> None:
    ring = Ring(2 * PAGE)
    first = published(ring, line(200, 1), line="a")
    published(ring, line(200, 2), line="b")
    with ring.lease(first):
        pass
    published(ring, line(200, 3), line="c")
    assert {entry.line for entry in ring.entries()} == {"a", "c"}


def test_what_is_being_read_or_written_is_never_evicted() -> None:
    ring = Ring(2 * PAGE)
    key = published(ring, line(10, 1))
    pending = reserved(ring, line(10, 2))
    with ring.lease(key) as view:
        assert ring.reserve("", "a", line(900), Rank.FRONT, PAGE) is Refusal.FULL
        assert bytes(view) == bytes_of(key, PAGE)
    assert ring.stats().refused == Counter({Refusal.FULL: 1})
    published(ring, line(900), Rank.FRONT)
    assert ring.publish(pending, PAGE)
    assert {entry.position for entry in ring.entries()} == {10, 900}


def test_the_coming_entry_is_a_neighbour_of_those_that_may_go() -> None:
    """The end of the last turn is worth its distance to the front only until the next end comes."""
    ring, tokens = Ring(2 * PAGE), line(4000)
    published(ring, tokens[:1000], Rank.FRONT)
    published(ring, tokens[:3000], Rank.END)
    published(ring, tokens[:3300], Rank.END)
    assert sorted(entry.position for entry in ring.entries()) == [1000, 3300]


def test_too_large_is_refused_and_nothing_goes() -> None:
    ring = Ring(2 * PAGE)
    published(ring, line(10))
    assert ring.reserve("", "a", line(20), Rank.END, 2 * PAGE + 1) is Refusal.TOO_LARGE
    assert Ring(0).reserve("", "a", line(20), Rank.END, 1) is Refusal.TOO_LARGE
    assert len(ring.entries()) == 1
    assert ring.stats().refused == Counter({Refusal.TOO_LARGE: 1})


def test_no_memory_is_a_refusal_that_leaves_nothing_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(capacity: int) -> memoryview:
        raise OSError(12, "Cannot allocate memory")

    ring = Ring(2 * PAGE)
    monkeypatch.setattr(slabs, "_pages", none_left)
    assert ring.reserve("", "a", line(20), Rank.END, 1) is Refusal.NO_MEMORY
    assert ring.stats().bytes == 0
    ring.check_integrity()


def test_in_the_steady_state_nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    ring, tokens = Ring(4 * PAGE), line(300)
    for position in range(1, 5):
        published(ring, tokens[:position], size=PAGE - 9)
    made = mmap.mmap
    allocations: list[int] = []

    def counting(number: int, length: int, **more: int) -> mmap.mmap:
        allocations.append(length)
        return made(number, length, **more)

    monkeypatch.setattr(mmap, "mmap", counting)
    for position in range(5, 200):
        published(ring, tokens[:position], size=PAGE - position)
    assert allocations == []
    published(ring, tokens[:200], size=PAGE + 1)
    assert allocations == [2 * PAGE]
    assert ring.stats().bytes <= 4 * PAGE


def test_freed_memory_counts_and_is_given_up_for_another_size() -> None:
    ring = Ring(8 * PAGE)
    for at in range(8):
        published(ring, line(10, at), line=at)
    assert ring.drop_line(lambda name: True) == 8
    kept = ring.stats().bytes
    assert 0 < kept <= 4 * PAGE
    published(ring, line(10), size=8 * PAGE)
    assert ring.stats().bytes == 8 * PAGE
    ring.check_integrity()


def test_buffers_start_at_a_page() -> None:
    ring = Ring(8 * PAGE)
    for size in (1, PAGE, PAGE + 1):
        buffer = reserved(ring, line(size), size=size).buffer
        assert np.frombuffer(buffer, np.uint8).ctypes.data % PAGE == 0


def test_a_damaged_payload_is_refused_and_dropped() -> None:
    ring, tokens = Ring(4 * PAGE), line(100)
    reservation = reserved(ring, tokens)
    kept = reservation.buffer
    ring.publish(reservation, PAGE)
    kept[77] ^= 1
    with pytest.raises(StoreCorrupt, match="is damaged"):
        ring.check_integrity(deep=True)
    with pytest.raises(StateDamaged) as damaged, ring.lease(reservation.key):
        pass
    assert damaged.value.key == reservation.key
    assert ring.find("", tokens) == []
    assert ring.stats().evictions == Counter({"damaged": 1})
    with pytest.raises(StateMissing), ring.lease(reservation.key):
        pass
    ring.check_integrity(deep=True)


def test_a_view_that_outlives_its_lease_is_an_error() -> None:
    ring = Ring(4 * PAGE)
    key = published(ring, line(10))
    with ring.lease(key) as view:
        pass
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    ring.check_integrity()


def test_what_is_demoted_becomes_an_ordinary_boundary_and_nothing_more_of_one() -> None:
    ring, tokens = Ring(100 * PAGE), line(2000)
    ranks = (Rank.END, Rank.LAST_BOUNDARY, Rank.FRONT, Rank.BOUNDARY, Rank.STEP)
    keys = [published(ring, tokens[: 100 + at], rank) for at, rank in enumerate(ranks)]
    assert ring.demote([*keys, "0" * 64]) == 2
    after = {entry.key: entry.rank for entry in ring.entries()}
    boundary = Rank.BOUNDARY
    assert [after[key] for key in keys] == [boundary, boundary, Rank.FRONT, boundary, Rank.STEP]
    assert ring.demote(keys[:2]) == 0


def test_a_dropped_line_is_gone_also_what_is_being_written_or_read() -> None:
    ring, tokens = Ring(8 * PAGE), line(100)
    key = published(ring, tokens[:50], line=("s1", 1))
    pending = reserved(ring, tokens, line=("s1", 2))
    published(ring, line(100, 1), line=("s2", 1))
    with ring.lease(key) as view:
        assert ring.drop_line(lambda name: name[0] == "s1") == 2  # type: ignore[index]
        assert ring.find("", tokens) == []
        again = published(ring, tokens[:50], line=("s1", 1))
        assert again == key
        assert bytes(view) == bytes_of(key, PAGE)
        ring.check_integrity()
    pending.buffer[:] = bytes(PAGE)
    assert not ring.publish(pending, PAGE)
    assert [e.line for e in ring.entries()] == [("s2", 1), ("s1", 1)]
    assert ring.stats().evictions == Counter({"dropped": 2})
    ring.check_integrity(deep=True)


def test_integrity_sees_what_is_wrong() -> None:
    ring = Ring(4 * PAGE)
    published(ring, line(300))
    (slot,) = ring._slots
    for name, wrong in (("digest", None), ("size", PAGE + 1), ("leases", -1)):
        right = getattr(slot, name)
        setattr(slot, name, wrong)
        with pytest.raises(StoreCorrupt):
            ring.check_integrity()
        setattr(slot, name, right)
    ring._slabs.used += 1
    with pytest.raises(StoreCorrupt, match="bytes counted"):
        ring.check_integrity()
    ring._slabs.used -= 1
    for index in (ring._by_key, ring._by_parent):
        kept = dict(index)
        index.clear()
        with pytest.raises(StoreCorrupt):
            ring.check_integrity()
        index.update(kept)  # type: ignore[arg-type]
    ring.check_integrity(deep=True)


def test_metrics_follow() -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    ring = Ring(2 * PAGE)
    room = value("sessiond_evictions_total", tier="ring", reason="room")
    large = value("sessiond_checkpoint_ring_refused_total", reason="too_large")
    for at in range(3):
        published(ring, line(10, at))
    ring.reserve("", "a", line(20), Rank.END, 3 * PAGE)
    assert (
        value("sessiond_checkpoint_ring_bytes")
        == value("sessiond_checkpoint_ring_limit_bytes")
        == 2 * PAGE
    )
    assert value("sessiond_checkpoint_ring_entries") == 2
    assert value("sessiond_evictions_total", tier="ring", reason="room") == room + 1
    assert value("sessiond_checkpoint_ring_refused_total", reason="too_large") == large + 1


def test_the_place_of_a_snapshot_is_its_chain_key_and_the_rest() -> None:
    ring, tokens = Ring(4 * PAGE), line(600)
    chain = chain_keys(root_key("", ""), tokens)
    assert reserved(ring, tokens[:512]).key == snapshot_key("snapshot", chain[2], tokens[:0])  # type: ignore[arg-type]
    assert reserved(ring, tokens[:511]).key == snapshot_key("snapshot", chain[1], tokens[256:511])  # type: ignore[arg-type]


def test_threads_may_do_everything_at_once() -> None:
    """Six threads, each with a line of its own and one in common; readers see whole payloads."""
    ring = Ring(24 * PAGE)
    common = line(2000)
    failures: list[BaseException] = []
    seen = Counter[str]()

    def work(number: int) -> None:
        draw = np.random.default_rng(number)
        own = line(2000, number + 1)
        for _ in range(150):
            tokens = common if draw.random() < 0.5 else own
            position = int(draw.integers(1, len(tokens)))
            size = int(draw.integers(1, 3 * PAGE))
            got = ring.reserve("", number, tokens[:position], Rank(draw.integers(0, 5)), size)
            if not isinstance(got, Refusal):
                got.buffer[:] = bytes_of(got.key, size)
                if draw.random() < 0.1:
                    ring.withdraw(got)
                else:
                    ring.publish(got, size)
            found = ring.find("", tokens)
            if found:
                entry = found[int(draw.integers(len(found)))]
                try:
                    with ring.lease(entry.key) as view:
                        assert bytes(view) == bytes_of(entry.key, entry.bytes)
                        seen["read"] += 1
                except StateMissing:
                    seen["gone"] += 1
            if draw.random() < 0.05:
                ring.drop_line(lambda name: name == number)
            ring.demote([entry.key for entry in ring.entries() if entry.line == number][:2])
            assert ring.stats().bytes <= 24 * PAGE

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen["read"] > 100
    ring.check_integrity(deep=True)
