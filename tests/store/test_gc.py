"""Nothing is taken away from a restore that has begun, whatever is cleared up meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sessiond.errors import StateMissing, StoreFull
from sessiond.store.store import Store
from tests.store.samples import file_of, files_of, fill, line, open_store, payload

BLOCK = 20_000
QUOTA = 30 * BLOCK
RESTORES = 40
LENGTH = 1024


def snapshot_of(seed: int) -> bytes:
    return payload(BLOCK // 2, 500 + seed)


def save(store: Store, seed: int) -> None:
    fill(store, line(LENGTH, seed), BLOCK, seed)
    store.put_snapshot(line(LENGTH, seed), snapshot_of(seed))


def restore(store: Store, seed: int) -> int:
    """As the daemon does it. How many files it had; what has begun is read to the end."""
    stored = store.lookup(line(LENGTH, seed))
    keys = [block.key for block in stored.blocks] + [s.key for s in stored.snapshots]
    with store.lease(keys):
        present = store._vault.index.records(keys)
        begun = [key for key in keys if key in present and present[key].present]
        for key, content in zip(begun, store.stream(begun), strict=True):
            kind = present[key].identity
            right = payload(BLOCK, seed * 10_000 + kind.start)
            assert bytes(content) in (right, snapshot_of(seed))
    return len(begun)


def test_restores_beside_everything_that_removes(tmp_path: Path) -> None:
    """
    Three threads restore, one writes past the quota, one drops, verifies, reconciles, collects,
    pins and changes the limits. Result: no file of a restore that has begun was gone.
    """
    store = open_store(tmp_path, quota=QUOTA)
    over, errors, restored = threading.Event(), list[BaseException](), list[int]()

    def run(work: Callable[[random.Random], None], seed: int) -> threading.Thread:
        chance = random.Random(seed)

        def body() -> None:
            try:
                work(chance)
            except BaseException as error:
                errors.append(error)
                over.set()

        return threading.Thread(target=body)

    def restores(chance: random.Random) -> None:
        for _ in range(RESTORES):
            restored.append(restore(store, chance.randrange(12)))

    def writes(chance: random.Random) -> None:
        while not over.is_set():
            try:
                save(store, chance.randrange(12))
            except StoreFull:
                continue

    def clears(chance: random.Random) -> None:
        while not over.is_set():
            seed = chance.randrange(12)
            stored = store.lookup(line(LENGTH, seed))
            keys = [b.key for b in stored.blocks] + [s.key for s in stored.snapshots]
            works: list[Callable[[], object]] = [
                partial(store.drop, keys),
                partial(store.pin, keys),
                partial(store.pin, []),
                store.reconcile,
                store.verify,
                lambda: store.collect(set(), time.time() + 60),
                lambda: store.resize(chance.randint(20, 40) * BLOCK, 0),
            ]
            chance.choice(works)()

    for seed in range(6):
        save(store, seed)
    readers = [run(restores, seed) for seed in range(3)]
    others = [run(writes, 10), run(clears, 11)]
    for thread in (*readers, *others):
        thread.start()
    for thread in readers:
        thread.join()
    over.set()
    for thread in others:
        thread.join()
    assert errors == []
    assert len(restored) == 3 * RESTORES
    assert sum(restored) > RESTORES
    store.check_integrity()
    assert store.usage().quarantined == 0
    store.close()


def evict(store: Store) -> None:
    """More than the quota comes."""
    for seed in range(20, 26):
        try:
            save(store, seed)
        except StoreFull:
            return


def drop(store: Store) -> None:
    stored = store.lookup(line(LENGTH, 1))
    store.drop([b.key for b in stored.blocks] + [s.key for s in stored.snapshots])


def purge(store: Store) -> None:
    """More files are refused than the quarantine keeps."""
    for seed in range(40, 60):
        tokens = line(100, seed)
        store.put_block(tokens, 0, payload(100))
        (found,) = store.lookup(tokens).blocks
        record = store._vault.index.get(found.key)
        assert record is not None
        path = store._vault.files.directory / "blocks" / found.key[:2] / found.key
        path.write_bytes(b"damaged".ljust(record.bytes, b"."))
    store.verify()


def collect(store: Store) -> None:
    store.collect(set(), time.time() + 60)


def shrink(store: Store) -> None:
    store.resize(5 * BLOCK, 0)


def reconcile(store: Store) -> None:
    store.reconcile()


@pytest.mark.parametrize(
    "clear", [evict, drop, purge, collect, shrink, reconcile], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_what_is_cleared_in_the_middle_of_a_restore(
    tmp_path: Path, clear: Callable[[Store], None], after: int
) -> None:
    """After so many files of it. Result: the rest is read; then what is not wanted is gone."""
    store = open_store(tmp_path, quota=QUOTA)
    save(store, 1)
    stored = store.lookup(line(LENGTH, 1))
    keys = [b.key for b in stored.blocks] + [s.key for s in stored.snapshots]
    with store.lease(keys):
        payloads = store.stream(keys)
        read = [bytes(next(payloads)) for _ in range(after)]
        clear(store)
        read += [bytes(content) for content in payloads]
        assert len(read) == len(keys)
        assert read[-1] == snapshot_of(1)
    if clear is drop:
        assert store.lookup(line(LENGTH, 1)).blocks == ()
    store.check_integrity()
    store.close()


def test_what_is_saved_again_while_it_waits_to_be_dropped_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 1)
    keys = [block.key for block in store.lookup(line(LENGTH, 1)).blocks]
    with store.lease(keys):
        drop(store)
        fill(store, line(LENGTH, 1), BLOCK, 1)
    assert store.lookup(line(LENGTH, 1)).tokens == LENGTH
    store.check_integrity()
    store.close()


def test_state_that_no_turn_was_made_with_goes_once_it_is_old(tmp_path: Path) -> None:
    """
    State of four models: one of turns in the ledger, one of none, one of none that was used
    lately, and the present one. Result: only what is of no turn and old goes.
    """
    for model in ("known", "stranger", "present"):
        other = open_store(tmp_path, fingerprint=model)
        save(other, 1)
        other.close()
    between = time.time()
    late = open_store(tmp_path, fingerprint="late stranger")
    save(late, 1)
    late.close()
    store = open_store(tmp_path, fingerprint="present")
    assert store.collect({"known"}, between) == 5
    assert store.collect({"known"}, between) == 0
    assert store.usage().blocks == 12
    assert store.lookup(line(LENGTH, 1)).tokens == LENGTH
    store.check_integrity()
    store.close()
    for model, tokens in (("known", LENGTH), ("stranger", 0), ("late stranger", LENGTH)):
        again = open_store(tmp_path, fingerprint=model)
        assert again.lookup(line(LENGTH, 1)).tokens == tokens
        again.close()


@pytest.mark.parametrize("before", [-1e11, float("-inf")])
def test_where_all_is_kept_for_centuries_nothing_goes(tmp_path: Path, before: float) -> None:
    stranger = open_store(tmp_path, fingerprint="stranger")
    save(stranger, 1)
    stranger.close()
    store = open_store(tmp_path, fingerprint="present")
    assert store.collect(set(), before) == 0
    store.close()


def test_files_of_writes_that_broke_off_go_but_not_those_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    incoming = tmp_path / "cache" / "incoming"
    orphan = incoming / ("a" * 64 + ".0123")
    orphan.write_bytes(b"left")
    seen: list[set[str]] = []
    write = type(store._vault.files).write

    def watched(files: object, kind: object, key: str, parts: object) -> None:
        under_way = incoming / f"{key}.4567"
        under_way.write_bytes(b"half")
        store.collect(set(), 0.0)
        seen.append({path.name for path in incoming.iterdir()})
        under_way.unlink()
        write(files, kind, key, parts)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(type(store._vault.files), "write", watched)
        store.put_block(line(256, 1), 0, payload(100))
    (key,) = [path.name for path in files_of(tmp_path)]
    assert seen == [{f"{key}.4567"}]
    store.check_integrity()
    store.close()


def test_a_file_that_goes_before_a_restore_began_is_a_miss_and_no_more(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 1)
    key = store.lookup(line(LENGTH, 1)).blocks[-1].key
    file_of(tmp_path, key).unlink()
    with store.lease([key]), pytest.raises(StateMissing):
        list(store.stream([key]))
    store.close()
