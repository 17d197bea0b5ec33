"""The store never exceeds its budget, and what does not fit changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessiond.errors import StateError, StoreFull
from sessiond.metrics import REGISTRY
from sessiond.store.found import State
from sessiond.store.store import Store
from tests.store.samples import disk_bytes, files_of, fill, line, open_store, payload

BLOCK = 100_000
QUOTA = 10 * BLOCK


def filled_to_the_brim(folder: Path) -> Store:
    """Two lines of four blocks, the second used last."""
    store = open_store(folder, quota=QUOTA)
    fill(store, line(1024, 1), BLOCK)
    fill(store, line(1024, 2), BLOCK)
    return store


def test_the_line_used_longest_ago_goes_first_and_from_its_end(tmp_path: Path) -> None:
    store = filled_to_the_brim(tmp_path)
    fill(store, line(768, 3), BLOCK)
    assert [store.lookup(line(1024, seed)).tokens for seed in (1, 2, 3)] == [512, 1024, 768]
    assert [(x.position, x.reason) for x in store.lookup(line(1024, 1)).lost] == [
        (512, State.EVICTED)
    ]
    store.check_integrity()
    store.close()


def test_use_saves_a_line(tmp_path: Path) -> None:
    store = filled_to_the_brim(tmp_path)
    store.touch([block.key for block in store.lookup(line(1024, 1)).blocks])
    fill(store, line(768, 3), BLOCK)
    assert [store.lookup(line(1024, seed)).tokens for seed in (1, 2, 3)] == [1024, 512, 768]
    store.close()


def test_every_stored_block_has_its_parents_whatever_is_evicted(tmp_path: Path) -> None:
    store = open_store(tmp_path, quota=QUOTA)
    for seed in range(12):
        tokens = line(1024, seed % 5)
        tokens[300 + 10 * seed :] += seed
        fill(store, tokens, BLOCK // 2)
        store.put_snapshot(tokens, payload(BLOCK // 4))
        assert disk_bytes(tmp_path) == store.usage().bytes <= QUOTA
        store.check_integrity()
    index = store._vault.index
    rows = {r.key: r for r in index.after("", 1000) if r.present}
    orphans = [r for r in rows.values() if r.identity.start and r.identity.parent not in rows]
    assert orphans == []
    assert len(rows) > 10
    store.close()


def test_what_is_leased_is_not_evicted(tmp_path: Path) -> None:
    store = filled_to_the_brim(tmp_path)
    leased = [block.key for block in store.lookup(line(1024, 1)).blocks]
    with store.lease(leased), store.lease(leased[:1]):
        fill(store, line(768, 3), BLOCK)
        assert [store.lookup(line(1024, seed)).tokens for seed in (1, 2)] == [1024, 512]
        assert store.drop(leased) == 0
    assert store.lookup(line(1024, 1)).tokens == 0
    store.check_integrity()
    store.close()


def test_when_all_is_leased_nothing_is_written_and_nothing_lost(tmp_path: Path) -> None:
    store = filled_to_the_brim(tmp_path)
    keys = [block.key for seed in (1, 2) for block in store.lookup(line(1024, seed)).blocks]
    before = sorted(files_of(tmp_path))
    with store.lease(keys), pytest.raises(StoreFull, match="No room"):
        fill(store, line(1024, 3), 3 * BLOCK)
    assert sorted(files_of(tmp_path)) == before
    store.check_integrity()
    store.close()


def test_a_new_block_never_pushes_out_its_own_parent(tmp_path: Path) -> None:
    store = open_store(tmp_path, quota=2 * BLOCK + 10_000)
    fill(store, line(256, 1), BLOCK)
    fill(store, line(256, 2), BLOCK)
    store.put_block(line(512, 1), 256, payload(BLOCK))
    assert store.lookup(line(512, 1)).tokens == 512
    assert store.lookup(line(256, 2)).tokens == 0
    store.close()


def test_what_is_larger_than_the_quota_is_refused(tmp_path: Path) -> None:
    store = filled_to_the_brim(tmp_path)
    with pytest.raises(StoreFull, match="quota"):
        store.put_snapshot(line(9), bytes(QUOTA))
    assert store.usage().blocks == 8
    store.close()


def test_the_quota_is_kept_at_every_moment_of_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, quota=QUOTA)
    seen: list[int] = []
    write = os.write

    def watched(file: int, data: memoryview) -> int:
        done = write(file, data[:7_000])
        seen.append(disk_bytes(tmp_path))
        return done

    monkeypatch.setattr(os, "write", watched)
    for seed in range(5):
        fill(store, line(1000, seed), BLOCK)
    assert len(seen) > 200
    assert max(seen) <= QUOTA
    store.close()


def test_a_smaller_quota_is_kept_from_the_start(tmp_path: Path) -> None:
    filled_to_the_brim(tmp_path).close()
    store = open_store(tmp_path, quota=QUOTA // 2)
    assert disk_bytes(tmp_path) <= QUOTA // 2
    assert store.lookup(line(1024, 2)).tokens == 1024
    store.check_integrity()
    store.close()


class Disk(NamedTuple):
    total: int
    used: int
    free: int


def test_keep_free_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capacity, keep_free = 600_000, 100_000

    def usage(_: object) -> Disk:
        used = disk_bytes(tmp_path)
        return Disk(capacity, used, capacity - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    store = open_store(tmp_path, keep_free=keep_free)
    evicted = _evicted("disk")
    for seed in range(9):
        store.put_block(line(256, seed), 0, payload(BLOCK))
        assert disk_bytes(tmp_path) <= capacity - keep_free
    assert store.usage().blocks == 4
    assert _evicted("disk") - evicted == 5
    store.close()


def _evicted(reason: str) -> float:
    name, labels = "sessiond_evictions_total", {"tier": "disk", "reason": reason}
    return REGISTRY.get_sample_value(name, labels) or 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EROFS])
@pytest.mark.parametrize("call", [1, 2])
def test_a_failed_write_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: int
) -> None:
    """Fails at the header or in the middle of the payload. Result: StoreFull, no file, no row."""
    store = filled_to_the_brim(tmp_path)
    before, usage = sorted(files_of(tmp_path)), store.usage()
    calls, write = [0], os.write

    def failing(file: int, data: memoryview) -> int:
        calls[0] += 1
        if calls[0] >= call:
            raise OSError(code, os.strerror(code))
        return write(file, data[:4000])

    with monkeypatch.context() as patch, pytest.raises(StoreFull, match=os.strerror(code)):
        patch.setattr(os, "write", failing)
        store.put_block(line(256, 3), 0, payload(1000))
    assert (sorted(files_of(tmp_path)), store.usage()) == (before, usage)
    assert disk_bytes(tmp_path) == usage.bytes
    store.check_integrity()
    assert store.put_block(line(256, 3), 0, payload(1000)) > 0
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_costs_only_the_new_state(small_disk: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"fingerprint": "m", "quota": 1 << 30, "keep_free": 0}
    store = Store(small_disk / "cache", tmp_path / "index.sqlite", **options)
    fill(store, line(1024), 300_000)
    hog = small_disk / "hog"
    hog.write_bytes(bytes(600_000))
    with pytest.raises(StoreFull), store.lease([b.key for b in store.lookup(line(1024)).blocks]):
        store.put_block(line(256, 5), 0, payload(400_000))
    assert store.lookup(line(1024)).tokens == 1024
    assert store.verify().blocks == 4
    hog.unlink()
    assert store.put_block(line(256, 5), 0, payload(400_000)) > 0
    store.check_integrity()
    store.close()


def test_errors_of_the_store_are_state_errors() -> None:
    assert issubclass(StoreFull, StateError)
    assert StoreFull.status == 507
