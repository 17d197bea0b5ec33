"""A smaller quota takes effect a few files at a time, while others read and write."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest

from sessiond.errors import StoreFailed, StoreFull
from sessiond.store import vault as vaults
from sessiond.store.files import Files
from sessiond.store.index import Index
from sessiond.store.store import Store
from sessiond.store.vault import Vault
from tests.store.samples import fill, line, open_store, payload

BLOCK = 1000
LINES = 50


class Counted:
    """A lock that knows how many files are removed for as long as somebody has it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0
        self.removed: list[int] = []

    def __enter__(self) -> None:
        self.lock.acquire()
        self.depth += 1
        if self.depth == 1:
            self.removed.append(0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.depth -= 1
        self.lock.release()


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Counted]:
    """A store with 200 blocks."""
    store, lock, remove = open_store(tmp_path), Counted(), Files.remove
    for seed in range(LINES):
        fill(store, line(1024, seed), BLOCK)

    def noted(files: Files, *names: str) -> None:
        lock.removed[-1] += 1
        remove(files, *names)

    monkeypatch.setattr(Files, "remove", noted)
    store._vault.lock = lock  # type: ignore[assignment]
    return store, lock


def test_others_come_in_between(counted: tuple[Store, Counted]) -> None:
    """Result: the lock is given back after a few files, the oldest are gone, all adds up."""
    store, lock = counted
    quota = store.usage().bytes // 10
    store.resize(quota, 0)
    assert max(lock.removed) <= vaults._AT_ONCE < sum(lock.removed)
    assert store.usage().quota == quota >= store.usage().bytes
    assert store.lookup(line(1024, LINES - 1)).tokens == 1024
    assert store.lookup(line(1024, 0)).tokens == 0
    store.check_integrity()
    store.close()


def test_others_come_in_between_for_keep_free(
    counted: tuple[Store, Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lock = counted
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 50_000}))
    store.resize(1 << 30, 50_000 + store.usage().bytes // 2)
    assert max(lock.removed) <= vaults._AT_ONCE < sum(lock.removed)
    assert 95 <= store.usage().blocks <= 105
    store.close()


def test_who_writes_meanwhile_makes_room_for_that_only(
    counted: tuple[Store, Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is written between two steps. Result: no more than one goes for it."""
    store, lock = counted
    gone: list[int] = []

    def write(_: float) -> None:
        if not gone:
            before = sum(lock.removed)
            assert store.put_block(line(256, 1000), 0, payload(BLOCK)) > 0
            gone.append(sum(lock.removed) - before)
        assert store.usage().bytes <= store.usage().quota

    monkeypatch.setattr("sessiond.store.vault.time.sleep", write)
    quota = store.usage().bytes // 10
    store.resize(quota, 0)
    assert gone == [1]
    assert store.usage().bytes <= store.usage().quota == quota
    assert store.lookup(line(256, 1000)).tokens == 256
    store.check_integrity()
    store.close()


def test_a_store_that_is_closed_meanwhile(
    counted: tuple[Store, Counted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result: nothing is evicted any more, and the next start finds it as it was then."""
    store, lock = counted
    left: list[int] = []

    def close(_: float) -> None:
        left.append(store.usage().blocks)
        store.close()

    monkeypatch.setattr("sessiond.store.vault.time.sleep", close)
    store.resize(1, 0)
    assert len(left) == 1
    assert sum(lock.removed) == vaults._AT_ONCE
    monkeypatch.undo()
    again = open_store(tmp_path)
    assert again.usage().blocks == left[0] == LINES * 4 - vaults._AT_ONCE
    again.check_integrity()
    again.close()


# --- an index that cannot be written


def unwritable(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many times there is no room to say in the index what went."""
    bury, left = Index.bury, [times]

    def failing(index: Index, *arguments: object) -> None:
        if left[0]:
            left[0] -= 1
            raise StoreFull("The store's index failed: database or disk is full.")
        bury(index, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "bury", failing)


def test_nothing_is_evicted_that_the_index_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. A full store whose index cannot be written. 2. Three blocks come. 3. It can be again.
    Result: but for the one that goes first all states are there. Then all adds up.
    """
    store = open_store(tmp_path)
    for seed in range(10):
        fill(store, line(256, seed), BLOCK)
    store.resize(store.usage().bytes, 0)
    with monkeypatch.context() as patched:
        unwritable(patched, 1 << 30)
        for seed in (20, 21, 22):
            with pytest.raises(StoreFull):
                store.put_block(line(256, seed), 0, payload(3 * BLOCK))
        for seed in range(1, 10):
            key = store.lookup(line(256, seed)).blocks[0].key
            assert bytes(store.read(key)) == payload(BLOCK)
    assert store.put_block(line(256, 20), 0, payload(3 * BLOCK)) > 0
    store.check_integrity()
    store.close()


def test_the_first_that_goes_makes_room_for_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    for seed in range(10):
        fill(store, line(256, seed), BLOCK)
    store.resize(store.usage().bytes, 0)
    unwritable(monkeypatch, 1)
    assert store.put_block(line(256, 20), 0, payload(BLOCK)) > 0
    store.check_integrity()
    store.close()


def test_an_end_between_index_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    1. The process ends when the index says that states are evicted, and their files are there.
    2. The next start. Result: the files are gone.
    """
    store = open_store(tmp_path)
    for seed in range(10):
        fill(store, line(256, seed), BLOCK)

    def ends(files: Files, *names: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Files, "remove", ends)
        with suppress(KeyboardInterrupt):
            store.resize(store.usage().bytes // 2, 0)
    store._vault.index._engine.dispose()
    again = open_store(tmp_path)
    assert 4 <= again.usage().blocks <= 6
    again.check_integrity()
    again.close()
    store._pool.shutdown()


def test_a_file_that_cannot_be_removed_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    for seed in range(10):
        fill(store, line(256, seed), BLOCK)

    def failing(files: Files, *names: str) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Files, "remove", failing)
        with pytest.raises(StoreFailed):
            store.resize(store.usage().bytes // 2, 0)
    assert store.usage().blocks == 10
    store.resize(store.usage().bytes // 2, 0)
    store.check_integrity()
    store.close()


def test_a_check_that_cannot_go_on_calls_nothing_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    fill(store, line(256), BLOCK)

    def full(vault: Vault, record: object) -> memoryview:
        raise StoreFull("The store's index failed: database or disk is full.")

    monkeypatch.setattr(Vault, "fetch", full)
    with pytest.raises(StoreFull):
        store.verify()
    store.close()


def test_a_full_index_makes_no_state_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. Of three blocks one is damaged and the file of one is gone; the index cannot be written.
    2. A check of all. 3. Another, when the index can be written.
    Result: each is called what it is, the sound one stays, and in the end all adds up.
    """
    store = open_store(tmp_path)
    for seed in range(3):
        fill(store, line(256, seed), BLOCK)
    keys = [store.lookup(line(256, seed)).blocks[0].key for seed in range(3)]
    gone, bad = (tmp_path / "cache" / "blocks" / key[:2] / key for key in keys[1:])
    gone.unlink()
    bad.write_bytes(bad.read_bytes()[:-1] + b"?")
    with monkeypatch.context() as patched:
        unwritable(patched, 1 << 30)
        seen = store.verify()
    assert (seen.blocks, seen.missing, seen.damaged) == (1, (keys[1],), (keys[2],))
    seen = store.verify()
    assert (seen.blocks, seen.damaged) == (1, ())
    assert bytes(store.read(keys[0])) == payload(BLOCK)
    store.check_integrity()
    store.close()
