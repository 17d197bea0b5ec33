"""The index is a cache of the file headers: whatever happens to it, the files are found again."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import DatabaseError

from sessiond.errors import StoreCorrupt, StoreFailed
from sessiond.store import database
from sessiond.store import index as index_module
from sessiond.store.found import State
from sessiond.store.index import Index, Totals
from sessiond.store.store import Store
from tests.store.samples import disk_bytes, file_of, files_of, fill, line, open_store, payload


def filled(folder: Path) -> Path:
    """A closed store with a line, a snapshot and a line of another model; the path of its index."""
    store = open_store(folder)
    fill(store, line(700))
    store.put_snapshot(line(699), payload(seed=5))
    store.close()
    other = open_store(folder, fingerprint="model-b")
    fill(other, line(300))
    other.close()
    return folder / "state" / "index.sqlite"


def expect_all(folder: Path) -> None:
    store = open_store(folder)
    found = store.lookup(line(700))
    assert (found.tokens, [s.position for s in found.snapshots]) == (700, [699])
    assert bytes(store.read(found.snapshots[0].key)) == payload(seed=5)
    verified = store.verify()
    assert (verified.blocks, verified.snapshots, verified.damaged) == (5, 1, ())
    assert verified.bytes == store.usage().bytes == disk_bytes(folder)
    store.check_integrity()
    store.close()


def test_a_store_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path)
    expect_all(tmp_path)


def delete(path: Path) -> None:
    path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)


def tear(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 100])


def make_older(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=0")


@pytest.mark.parametrize("harm", [delete, overwrite, tear, make_older])
def test_a_lost_or_damaged_index_is_rebuilt_from_the_files(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(filled(tmp_path))
    expect_all(tmp_path)


def test_a_newer_index_is_kept_aside_untouched(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=7")
    data = path.read_bytes()
    expect_all(tmp_path)
    assert path.with_name("index.sqlite.newer").read_bytes() == data


def test_files_without_a_row_are_adopted_and_used_least_recently(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, line(256, 1))
    (path,) = files_of(tmp_path)
    data = path.read_bytes()
    store.drop([path.name])
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt):
        store.check_integrity()
    fill(store, line(256, 2))
    assert store.reconcile().adopted == 1
    store.check_integrity()
    assert store.lookup(line(256, 1)).tokens == 256
    assert [c.key for c in store._vault.index.oldest(1)] == [path.name]
    store.close()


def test_adopted_files_are_kept_within_the_quota(tmp_path: Path) -> None:
    filled(tmp_path).unlink()
    store = open_store(tmp_path, quota=4000)
    assert disk_bytes(tmp_path) == store.usage().bytes <= 4000
    assert store.usage().blocks + store.usage().snapshots >= 1
    store.check_integrity()
    store.close()


def test_the_self_check_finds_what_does_not_add_up(tmp_path: Path, store: Store) -> None:
    fill(store, line(700))
    store.check_integrity()
    path = file_of(tmp_path, store.lookup(line(700)).blocks[1].key)
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(StoreCorrupt, match="differ"):
        store.check_integrity()
    path.write_bytes(data + b"x")
    with pytest.raises(StoreCorrupt, match="differ"):
        store.check_integrity()
    path.write_bytes(data)
    store.check_integrity()
    store._vault.totals = Totals(store.usage().bytes, blocks=2, snapshots=1)
    with pytest.raises(StoreCorrupt, match="counted"):
        store.check_integrity()


def test_tombstones_are_few_and_the_youngest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "TOMBSTONES", 20)
    monkeypatch.setattr(index_module, "_SLACK", 10)
    store = open_store(tmp_path, quota=1600)
    for seed in range(100):
        fill(store, line(9, seed))
        assert store._vault.index.tombstones() <= 20 + 10
    assert store.lookup(line(9, 98)).lost[0].reason is State.EVICTED
    assert store.lookup(line(9, 1)).lost == ()
    store.close()


def test_time_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, quota=3000)
    fill(store, line(9, 1))
    store.close()
    monkeypatch.setattr("time.time_ns", lambda: 1)
    store = open_store(tmp_path, quota=3000)
    fill(store, line(9, 2))
    fill(store, line(9, 3))
    assert [store.lookup(line(9, seed)).tokens for seed in (1, 2, 3)] == [0, 9, 9]
    store.close()


def test_an_index_that_was_closed_and_not_touched_is_not_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked and counted: the first time, and after a crash or a change from outside."""
    looked = Mock(wraps=database._verdict)
    monkeypatch.setattr(database, "_verdict", looked)
    counted = Mock(wraps=Index.totals)
    monkeypatch.setattr(Index, "totals", lambda self: counted(self))
    path = filled(tmp_path)
    before = (looked.call_count, counted.call_count)
    for _ in range(2):
        open_store(tmp_path).close()
    assert (looked.call_count, counted.call_count) == before
    crashed = open_store(tmp_path)
    crashed._vault.index.close()
    crashed._pool.shutdown()
    open_store(tmp_path).close()
    assert (looked.call_count, counted.call_count) == (before[0] + 1, before[1] + 1)
    os.utime(path)
    store = open_store(tmp_path)
    assert (looked.call_count, counted.call_count) == (before[0] + 2, before[1] + 2)
    store.check_integrity()
    store.close()


def test_a_large_index_is_not_read_through_after_a_crash_and_built_anew_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_LARGE", 0)
    looked = Mock(wraps=database._verdict)
    path = filled(tmp_path)
    monkeypatch.setattr(database, "_verdict", looked)
    path.with_name("index.sqlite.closed").unlink()
    store = open_store(tmp_path)
    assert looked.call_count == 0
    with pytest.raises(StoreFailed), store._vault.index._translated():
        broken = sqlite3.DatabaseError("database disk image is malformed")
        broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise DatabaseError("SELECT", {}, broken)
    store.close()
    expect_all(tmp_path)
    assert path.with_name("index.sqlite.damaged").exists()
    expect_all(tmp_path)
    assert looked.call_count == 0


@pytest.mark.parametrize("first", [2, 5])
def test_damage_that_does_not_show_from_outside_is_found_by_use(tmp_path: Path, first: int) -> None:
    """Pages from the `first` on are overwritten, size and time stay. Result: rebuilt at the start
    that notices, at the latest at the one after a failure.
    """
    path = filled(tmp_path)
    status, data = path.stat(), bytearray(path.read_bytes())
    data[(first - 1) * 4096 :] = b"\xff" * (len(data) - (first - 1) * 4096)
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    store = open_store(tmp_path)
    with suppress(StoreFailed):
        store.lookup(line(700))
        store.verify()
    store.close()
    expect_all(tmp_path)


def test_a_schema_that_is_no_text_is_rebuilt_at_the_start(tmp_path: Path) -> None:
    """1. A letter in a column's type becomes a byte that is none. 2. Start.

    Result: SQLite finds the file sound and cannot say what is in it; it is put aside at once.
    """
    store = open_store(tmp_path)
    fill(store, line(512))
    store.close()
    path = tmp_path / "state" / "index.sqlite"
    content = path.read_bytes()
    at = content.index(b"VARCHAR NOT NULL")
    for beside in path.parent.glob("index.sqlite*"):
        beside.unlink()
    path.write_bytes(content[: at + 10] + b"\xff" + content[at + 11 :])
    store = open_store(tmp_path)
    assert len(store.lookup(line(512)).blocks) == 2
    assert (path.parent / "index.sqlite.damaged").exists()
    assert path.stat().st_mode & 0o777 == 0o600
    store.close()
