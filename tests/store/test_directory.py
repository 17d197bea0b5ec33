from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.errors import StateError, StoreFailed
from sessiond.store.store import Store
from tests.store.samples import file_of, files_of, fill, line, open_store, payload

SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n"


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    for name in ("cache", "state"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o700)
    store = open_store(tmp_path)
    fill(store, line(700))
    store.put_snapshot(line(700), payload())
    file_of(tmp_path, store.lookup(line(700)).blocks[0].key).write_bytes(b"")
    store.verify()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert len(modes) > 10
    store.close()


def test_backups_know_the_directory_for_a_cache(tmp_path: Path, store: Store) -> None:
    assert (tmp_path / "cache" / "CACHEDIR.TAG").read_text().startswith(SIGNATURE)


def test_what_a_killed_writer_left_is_removed_at_start(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    left = tmp_path / "cache" / "incoming" / "abc.tmp"
    left.write_bytes(b"half")
    open_store(tmp_path).close()
    assert not left.exists()


@pytest.mark.parametrize("what", ["cache", "cache/blocks", "cache/incoming"])
def test_deleting_the_cache_below_a_running_store_costs_only_misses(
    tmp_path: Path, store: Store, what: str
) -> None:
    """Result: no error but the store's own, nothing wrong handed out, and it fills again."""
    fill(store, line(700))
    store.put_snapshot(line(700), payload())
    keys = [block.key for block in store.lookup(line(700)).blocks]
    shutil.rmtree(tmp_path / what)
    for key in keys[:1] if what != "cache/incoming" else []:
        with pytest.raises(StateError):
            store.read(key)
    found = store.lookup(line(700))
    assert found.tokens == (700 if what == "cache/incoming" else 0)
    store.reconcile()
    store.check_integrity()
    fill(store, line(700))
    store.put_snapshot(line(700), payload())
    assert store.lookup(line(700)).tokens == 700
    assert store.verify().blocks == 3
    assert store.usage().snapshots == 1
    store.check_integrity()


def test_strangers_in_the_directory_are_cleared_away(tmp_path: Path, store: Store) -> None:
    fill(store, line(256))
    folder = files_of(tmp_path)[0].parent
    outside = tmp_path / "outside"
    outside.write_bytes(b"not ours")
    (folder / "notes.txt").write_bytes(b"?")
    (folder / ("f" * 64)).symlink_to(outside)
    (folder / ("0" * 64)).write_bytes(b"junk")
    (folder / "sub").mkdir()
    result = store.reconcile()
    assert (result.adopted, result.removed, result.missing) == (0, 3, 0)
    assert outside.read_bytes() == b"not ours"
    assert store.lookup(line(256)).tokens == 256
    store.check_integrity()


def test_files_under_another_name_or_shelf_are_not_adopted(tmp_path: Path, store: Store) -> None:
    fill(store, line(256))
    (path,) = files_of(tmp_path)
    shelf = tmp_path / "cache" / "snapshots" / path.parent.name
    shelf.mkdir()
    shutil.copy(path, shelf / path.name)
    twin = path.parent / (path.name[:2] + "0" * 62)
    shutil.copy(path, twin)
    assert store.reconcile().removed == 2
    assert files_of(tmp_path) == [path]
    store.check_integrity()


def test_sync_reaches_the_disk(tmp_path: Path, store: Store) -> None:
    """Result: the index's main file has it all, so that a copy without the log is complete."""
    fill(store, line(300))
    store.sync()
    (tmp_path / "copy").mkdir()
    shutil.copytree(tmp_path / "cache", tmp_path / "copy" / "cache")
    shutil.copytree(tmp_path / "state", tmp_path / "copy" / "state")
    (tmp_path / "copy" / "state" / "index.sqlite-wal").unlink()
    copied = open_store(tmp_path / "copy")
    assert copied.lookup(line(300)).tokens == 300
    copied.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    with pytest.raises(StoreFailed, match="cache"):
        open_store(tmp_path)


def test_nothing_but_store_errors_comes_out_when_the_directory_is_gone(
    tmp_path: Path, store: Store
) -> None:
    fill(store, line(300))
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"a file")
    with pytest.raises(StateError):
        store.sync()
    with pytest.raises(StateError):
        fill(store, line(900, 1))
    assert store.lookup(line(300)).tokens == 0
