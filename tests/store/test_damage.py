"""Nothing unverified is ever handed out (invariant 4), and what is refused is explained."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from sessiond.errors import StateDamaged, StateError, StateForeign, StateMissing, StateNewer
from sessiond.metrics import REGISTRY
from sessiond.store.found import State
from sessiond.store.quarantine import KEEP
from sessiond.store.store import Store
from tests.store.samples import disk_bytes, file_of, fill, line, open_store, payload


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def newer(path: Path) -> None:
    """The same file as a later sessiond would write it."""
    data = path.read_bytes()
    length = int.from_bytes(data[12:16], "little")
    start = data[:8] + (2).to_bytes(4, "little") + data[12:16]
    header = data[32 : 32 + length]
    path.write_bytes(start + xxhash.xxh3_128_digest(start + header) + data[32:])


def as_link(path: Path) -> None:
    secret = path.parents[3] / "secret"
    path.rename(secret)
    path.symlink_to(secret)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CASES: list[tuple[str, Callable[[Path], object], type[StateError], State]] = [
    ("header", lambda p: flip(p, 50), StateDamaged, State.DAMAGED),
    ("payload", lambda p: flip(p, -1), StateDamaged, State.DAMAGED),
    ("truncated", lambda p: os.truncate(p, 900), StateDamaged, State.DAMAGED),
    ("empty", lambda p: os.truncate(p, 0), StateDamaged, State.DAMAGED),
    ("trailing", lambda p: p.write_bytes(p.read_bytes() + b"x"), StateDamaged, State.DAMAGED),
    ("newer", newer, StateNewer, State.NEWER),
    ("link", as_link, StateDamaged, State.DAMAGED),
    ("pipe", as_pipe, StateDamaged, State.DAMAGED),
    ("gone", lambda p: p.unlink(), StateMissing, State.MISSING),
]


@pytest.mark.parametrize(("name", "harm", "error", "state"), CASES, ids=[case[0] for case in CASES])
def test_a_harmed_file_is_refused_once_and_then_lost(
    tmp_path: Path,
    store: Store,
    name: str,
    harm: Callable[[Path], object],
    error: type[StateError],
    state: State,
) -> None:
    """1. Harm the second of three blocks. 2. Read it. 3. Look it up. 4. Store it again.
    Result: refused with its reason, named as lost, and whole again after step 4."""
    fill(store, line(700))
    keys = [block.key for block in store.lookup(line(700)).blocks]
    harm(file_of(tmp_path, keys[1]))
    with pytest.raises(error) as caught:
        store.read(keys[1])
    assert caught.value.key == keys[1]
    with pytest.raises(StateMissing):
        store.read(keys[1])
    found = store.lookup(line(700))
    assert found.tokens == 256
    assert [(lost.position, lost.reason) for lost in found.lost] == [(256, state)]
    assert disk_bytes(tmp_path) == store.usage().bytes
    store.check_integrity()
    assert fill(store, line(700)) > 0
    assert store.lookup(line(700)).tokens == 700
    assert store.verify().blocks == 3


def test_the_state_of_something_else_under_this_name_is_foreign(
    tmp_path: Path, store: Store
) -> None:
    one, two = line(300, 1), line(300, 2)
    fill(store, one)
    fill(store, two)
    mine, other = store.lookup(one).blocks[0], store.lookup(two).blocks[0]
    data = file_of(tmp_path, other.key).read_bytes()
    file_of(tmp_path, mine.key).write_bytes(data.ljust(mine.bytes, b"\0")[: mine.bytes])
    with pytest.raises(StateForeign if mine.bytes == other.bytes else StateError):
        store.read(mine.key)
    assert bytes(store.read(other.key)) == payload(1000, 0)


def test_no_flipped_byte_anywhere_gets_through(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, line(20), size=30)
    (block,) = store.lookup(line(20)).blocks
    path = file_of(tmp_path, block.key)
    whole = path.read_bytes()
    for at in range(len(whole)):
        flip(path, at)
        with pytest.raises(StateDamaged):
            store.read(block.key)
        fill(store, line(20), size=30)
    assert store.usage().quarantined <= KEEP
    store.close()


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path, store: Store) -> None:
    fill(store, line(256))
    (block,) = store.lookup(line(256)).blocks
    folder = file_of(tmp_path, block.key).parent
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = sorted(elsewhere.iterdir())
    with pytest.raises(StateError):
        store.read(block.key)
    store.reconcile()
    assert fill(store, line(256)) > 0
    assert not folder.is_symlink()
    assert sorted(elsewhere.iterdir()) == before
    assert bytes(store.read(block.key)) == payload(1000, 0)


def test_few_refused_files_are_kept_and_all_are_counted(tmp_path: Path, store: Store) -> None:
    def counted() -> float:
        name, labels = "sessiond_store_quarantined_files_total", {"reason": "damaged"}
        return REGISTRY.get_sample_value(name, labels) or 0

    before = counted()
    for seed in range(KEEP + 5):
        fill(store, line(10, seed))
        flip(file_of(tmp_path, store.lookup(line(10, seed)).blocks[0].key), -1)
        with pytest.raises(StateDamaged):
            store.read(store.lookup(line(10, seed)).blocks[0].key)
    assert counted() - before == KEEP + 5
    assert store.usage().quarantined == KEEP
    assert len(list((tmp_path / "cache" / "quarantine").iterdir())) == KEEP


def test_quarantined_files_give_way_first(tmp_path: Path) -> None:
    store = open_store(tmp_path, quota=300_000)
    fill(store, line(10, 1), 100_000)
    fill(store, line(10, 2), 100_000)
    (bad,) = store.lookup(line(10, 2)).blocks
    flip(file_of(tmp_path, bad.key), -1)
    with pytest.raises(StateDamaged):
        store.read(bad.key)
    fill(store, line(10, 3), 150_000)
    assert store.usage().quarantined == 0
    assert store.lookup(line(10, 1)).tokens == 10
    assert disk_bytes(tmp_path) == store.usage().bytes <= 300_000
    store.close()


def test_damage_behind_the_back_of_an_absent_fingerprint_is_found_by_verify(
    tmp_path: Path, store: Store
) -> None:
    other = open_store(tmp_path, fingerprint="model-b", owner="b")
    fill(other, line(700))
    keys = [block.key for block in other.lookup(line(700)).blocks]
    other.close()
    fill(store, line(300))
    store.put_snapshot(line(300), payload())
    with pytest.raises(StateForeign):
        store.read(keys[0])
    fresh = open_store(tmp_path)
    with pytest.raises(StateForeign):
        fresh.read(keys[0])
    flip(file_of(tmp_path, keys[0]), 400)
    file_of(tmp_path, keys[1]).unlink()
    seen: list[tuple[int, int]] = []
    result = fresh.verify(lambda done, total: seen.append((done, total)))
    assert (result.blocks, result.snapshots) == (3, 1)
    assert (result.damaged, result.missing) == ((keys[0],), (keys[1],))
    assert seen == [(n, 6) for n in range(1, 7)]
    assert (fresh.verify().damaged, fresh.verify().missing) == ((), ())
    fresh.close()
