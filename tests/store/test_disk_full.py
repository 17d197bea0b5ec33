"""A disk that is full, read-only or failing: what is said, what stays, and that it recovers."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessiond.errors import LedgerError, StateError, StoreFull
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.schema import SessionRecord
from sessiond.store import trouble
from sessiond.store.room import Room, database_hint, free_in
from sessiond.store.store import Store
from sessiond.store.trouble import Trouble
from tests.sessions.turns import make_turn
from tests.store.mounts import filled, remount, small_disk
from tests.store.samples import fill, line, open_store, payload

BLOCK = 100_000
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 4) as mount:
        yield mount


def on_disk(disk: Path, tmp_path: Path, **options: Any) -> Store:
    settings: dict[str, Any] = {"fingerprint": "m", "quota": 1 << 30, "keep_free": 0}
    return Store(disk / "cache", tmp_path / "index.sqlite", **settings | options)


def test_no_room_on_the_disk_of_the_blocks(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon tries again and again. Result: said once with directory and space, over once."""
    caplog.set_level(logging.INFO)
    store = on_disk(disk, tmp_path)
    fill(store, line(1024), BLOCK)
    keys = [block.key for block in store.lookup(line(1024)).blocks]
    with filled(disk), store.lease(keys):
        for _ in range(10):
            with pytest.raises(StoreFull, match="No room"):
                store.put_block(line(256, 5), 0, payload(BLOCK))
        assert f"free in {disk}/cache" in store.trouble
        assert "free some space there" in store.trouble.lower()
        assert store.lookup(line(1024)).tokens == 1024
        assert store.verify().blocks == 4
    assert store.put_block(line(256, 5), 0, payload(BLOCK)) > 0
    assert store.trouble == ""
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[1] == "Model state is saved again."
    store.check_integrity()
    store.close()


def test_no_room_on_the_disk_of_the_index(disk: Path, tmp_path: Path) -> None:
    """Result: a miss for what could not be written down, nothing lost, and then it goes on."""
    settings: dict[str, Any] = {"fingerprint": "m", "quota": 1 << 30, "keep_free": 0}
    store = Store(tmp_path / "cache", disk / "index.sqlite", **settings)
    fill(store, line(1024), 1000)
    store.sync()
    with filled(disk):
        written = 0
        with pytest.raises(StateError, match=r"index failed: .*full.* free in .*disk\. Free some"):
            for seed in range(1, 3000):
                store.put_block(line(256, seed), 0, payload(10))
                written = seed
        assert str(disk) in store.trouble
        assert store.lookup(line(1024)).tokens == 1024
    assert store.put_block(line(256, written + 1), 0, payload(10)) > 0
    assert store.trouble == ""
    for seed in range(1, written + 2):
        assert store.lookup(line(256, seed)).tokens == 256
    store.reconcile()
    store.check_integrity()
    store.close()
    again = Store(tmp_path / "cache", disk / "index.sqlite", **settings)
    assert again.verify().blocks == 4 + written + 1
    again.close()


def test_a_full_disk_of_both_gives_way_by_evicting(disk: Path) -> None:
    """Others take all room there is. Result: older state goes for newer, though the index has no
    room at first to say so."""
    store = Store(
        disk / "cache", disk / "index.sqlite", fingerprint="m", quota=1 << 30, keep_free=0
    )
    for seed in range(8):
        fill(store, line(256, seed), BLOCK)
    store.sync()
    with filled(disk):
        for seed in range(20, 24):
            assert store.put_block(line(256, seed), 0, payload(BLOCK)) > 0
        assert store.usage().blocks < 12
    store.check_integrity()
    store.close()


def test_a_disk_that_is_read_only(disk: Path, tmp_path: Path) -> None:
    store = on_disk(disk, tmp_path)
    fill(store, line(512), BLOCK)
    remount(disk, "ro")
    with pytest.raises(StoreFull, match="Read-only"):
        store.put_block(line(256, 5), 0, payload(BLOCK))
    assert "Make it writable" in store.trouble
    assert bytes(store.read(store.lookup(line(512)).blocks[0].key)) == payload(BLOCK, 0)
    remount(disk, "rw")
    assert store.put_block(line(256, 5), 0, payload(BLOCK)) > 0
    assert store.trouble == ""
    store.check_integrity()
    store.close()


def test_a_quota_smaller_than_a_block(tmp_path: Path) -> None:
    store = open_store(tmp_path, quota=BLOCK // 2)
    with pytest.raises(StoreFull, match=r"does not fit into store\.quota = 48\.8 KiB\. Raise"):
        store.put_block(line(256), 0, payload(BLOCK))
    assert store.put_block(line(256, 1), 0, payload(1000)) > 0
    assert "Raise store.quota." in store.trouble, "smaller ones fit, this one never will"
    store.resize(2 * BLOCK, 0)
    assert store.put_block(line(256), 0, payload(BLOCK)) > 0
    assert store.trouble == ""
    store.close()


def test_keep_free_is_reached_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, keep_free=5 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 30}))
    with pytest.raises(StoreFull) as error:
        store.put_block(line(256), 0, payload(BLOCK))
    assert f"1.0 GiB free in {tmp_path}/cache" in str(error.value)
    assert "store.keep_free keeps 5.0 GiB" in str(error.value)
    assert "lower store.keep_free" in str(error.value)
    store.resize(1 << 30, 0)
    assert store.put_block(line(256), 0, payload(BLOCK)) > 0
    store.close()


@pytest.mark.parametrize(
    ("code", "way"), [(errno.ENOSPC, "Free some"), (errno.EROFS, "writable"), (errno.EIO, "dmesg")]
)
def test_each_failure_says_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, way: str
) -> None:
    store = open_store(tmp_path)

    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch, pytest.raises(StoreFull, match=way):
        patch.setattr(os, "write", failing)
        store.put_block(line(256), 0, payload(1000))
    assert str(tmp_path) in store.trouble
    assert "costs time after a restart and nothing else" in store.trouble
    store.close()


def test_the_ledger_on_a_full_disk_says_where_and_loses_nothing(disk: Path) -> None:
    ledger = Ledger(disk / "ledger.sqlite")
    session = SessionRecord.new("billing", 1.0)
    long = "word " * 20_000
    with filled(disk, leaving=MIB):
        saved = 0
        with pytest.raises(LedgerError) as error:
            for number in range(1, 100):
                ledger.commit(session, make_turn(number, number - 1 or None, long))
                saved = number
        assert f"free in {disk}. Free some space there." in str(error.value)
        assert 0 < saved < 90
        assert len(ledger.load("billing")) == saved
    ledger.commit(session, make_turn(saved + 1, saved, long))
    ledger.close()
    again = Ledger(disk / "ledger.sqlite")
    assert again.check_integrity() == saved + 1
    again.close()


def test_a_ledger_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    session = SessionRecord.new("billing", 1.0)
    ledger.commit(session, make_turn(1))
    ledger._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerError, match=r"Make .* writable again"):
        ledger.commit(session, make_turn(2, 1))
    ledger._connection.execute("PRAGMA query_only = OFF")
    ledger.commit(session, make_turn(2, 1))
    assert len(ledger.load("billing")) == 2
    ledger.close()


def failed(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN]
)
def test_a_full_disk_is_called_that_whatever_sqlite_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 4096}))
    hint = database_hint(failed(code), tmp_path / "x")
    assert hint == f"4.0 KiB free in {tmp_path}. Free some space there."


def test_hints_are_for_disks_only(tmp_path: Path) -> None:
    locked = sqlite3.OperationalError("database is locked")
    assert database_hint(locked, tmp_path / "x") == ""
    assert "dmesg" in database_hint(failed(sqlite3.SQLITE_IOERR), tmp_path / "x")
    assert free_in(tmp_path / "not" / "there").endswith(f"free in {tmp_path}/not/there")


def test_each_shortage_in_a_sentence_of_its_own(tmp_path: Path) -> None:
    room = Room(tmp_path, MIB, 10 * MIB, 9 * MIB + 1, 0, 0, 1 << 40, disk=False)
    assert "Raise store.quota." in str(room)
    assert "npin" not in str(room)
    pinned = Room(tmp_path, MIB, 10 * MIB, 9 * MIB + 1, 9 * MIB, 0, 1 << 40, disk=False)
    assert "9.0 MiB of it are pinned. Unpin a session (sessiond unpin NAME), or" in str(pinned)


def test_what_lasts_is_said_once_and_its_end_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    now = [1000.0]
    monkeypatch.setattr(trouble.time, "monotonic", lambda: now[0])
    lasting = Trouble(logging.getLogger("test"), "It is over.")
    for free in ("1.2 MiB", "900 KiB", "3 B", "0 Bytes"):
        lasting.begins(f"{free} free in /x.", size=100)
        lasting.ends(size=99)
        assert lasting.text == f"{free} free in /x."
    lasting.ends(size=100)
    assert lasting.text == ""
    assert [r.getMessage() for r in caplog.records] == ["1.2 MiB free in /x.", "It is over."]
    lasting.begins("5 B free in /x.")
    lasting.ends()
    assert len(caplog.records) == 2, "what comes and goes is not said every time"
    lasting.begins("Read-only: /x.")
    assert caplog.records[-1].getMessage() == "Read-only: /x."
    lasting.ends()
    now[0] += trouble.QUIET_S
    lasting.begins("5 B free in /x.")
    assert caplog.records[-1].getMessage() == "5 B free in /x."
    now[0] += trouble.FRESH_S
    assert lasting.text == "", "nobody has tried since"
