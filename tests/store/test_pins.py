"""What is pinned is never evicted; a person is told when it leaves no room for anything else."""

from __future__ import annotations

import logging
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from sessiond.engine.memory import Tokens
from sessiond.errors import StoreFull
from sessiond.metrics import REGISTRY
from sessiond.store.store import Store
from tests.store.samples import disk_bytes, fill, line, open_store, payload

BLOCK = 100_000
QUOTA = 10 * BLOCK


def keys_of(store: Store, tokens: Tokens) -> list[str]:
    stored = store.lookup(tokens)
    return [b.key for b in stored.blocks] + [s.key for s in stored.snapshots]


def pin(store: Store, *lines: Tokens) -> None:
    store.pin([key for tokens in lines for key in keys_of(store, tokens)])


def test_the_quota_evicts_all_but_what_is_pinned(tmp_path: Path) -> None:
    """The pinned line was used longest ago. Result: of ten others that come, none pushes it out."""
    store = open_store(tmp_path, quota=QUOTA)
    fill(store, line(1024, 1), BLOCK)
    store.put_snapshot(line(1000, 1), payload(BLOCK // 2))
    pin(store, line(1024, 1))
    for seed in range(2, 12):
        fill(store, line(1024, seed), BLOCK)
        assert store.lookup(line(1024, 1)).tokens == 1024
        assert len(store.lookup(line(1000, 1)).snapshots) == 1
        store.check_integrity()
    store.pin([])
    fill(store, line(1024, 20), BLOCK)
    fill(store, line(1024, 21), BLOCK)
    assert store.lookup(line(1024, 1)).tokens < 1024
    store.close()


def test_what_a_pinned_state_stands_on_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path, quota=QUOTA)
    fill(store, line(1024, 1), BLOCK)
    store.pin(keys_of(store, line(1024, 1))[-1:])
    for seed in range(2, 8):
        fill(store, line(1024, seed), BLOCK)
    assert store.lookup(line(1024, 1)).tokens == 1024
    store.close()


def test_keep_free_evicts_all_but_what_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity, keep_free = 600_000, 100_000

    def usage(_: object) -> object:
        free = capacity - disk_bytes(tmp_path)
        return type("Usage", (), {"free": free})

    monkeypatch.setattr(shutil, "disk_usage", usage)
    store = open_store(tmp_path, keep_free=keep_free)
    fill(store, line(512, 1), BLOCK)
    pin(store, line(512, 1))
    for seed in range(2, 9):
        store.put_block(line(256, seed), 0, payload(BLOCK))
    assert store.lookup(line(512, 1)).tokens == 512
    assert store.usage().blocks == 4
    store.close()


def test_pinned_state_alone_fills_the_quota(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    1. Everything in the store is pinned. 2. Others are saved, again and again. 3. One is unpinned.
    Result: they fail and say what to do, in the log once; then they are saved, in the log once.
    """
    caplog.set_level(logging.INFO)
    store = open_store(tmp_path, quota=4 * BLOCK + 40_000)
    fill(store, line(1024, 1), BLOCK)
    pin(store, line(1024, 1))
    for _ in range(20):
        with pytest.raises(StoreFull, match="sessiond unpin NAME"):
            store.put_block(line(256, 2), 0, payload(BLOCK))
    assert "store.quota" in store.trouble
    assert "are pinned" in store.trouble
    store.put_snapshot(line(5), payload(100))
    assert store.trouble, "room for a little is no room for a block"
    assert store.lookup(line(1024, 1)).tokens == 1024
    assert REGISTRY.get_sample_value("sessiond_disk_pinned_bytes") == store.usage().bytes - len(
        (tmp_path / "cache" / "snapshots").glob("*/*").__next__().read_bytes()
    )
    store.pin([])
    assert store.put_block(line(256, 2), 0, payload(BLOCK)) > 0
    assert store.trouble == ""
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "unpin" in said[0]
    assert said[1] == "Model state is saved again."
    store.check_integrity()
    store.close()


def test_a_pinned_session_goes_on_and_its_old_tails_go(tmp_path: Path) -> None:
    store = open_store(tmp_path, quota=QUOTA)
    fill(store, line(300, 1), BLOCK)
    pin(store, line(300, 1))
    store.put_block(line(400, 1), 256, payload(BLOCK))
    assert store.usage().blocks == 2
    store.drop([store.lookup(line(400, 1)).blocks[-1].key])
    assert store.usage().blocks == 1
    store.check_integrity()
    store.close()


def test_pins_hold_from_the_first_moment_of_the_next_start(tmp_path: Path) -> None:
    """The quota is smaller than what is pinned by then. Result: that stays, all else goes."""
    store = open_store(tmp_path, quota=QUOTA)
    fill(store, line(1024, 1), BLOCK)
    pin(store, line(1024, 1))
    fill(store, line(1024, 2), BLOCK)
    store.close()
    smaller = open_store(tmp_path, quota=2 * BLOCK)
    assert smaller.lookup(line(1024, 1)).tokens == 1024
    assert smaller.lookup(line(1024, 2)).tokens == 0
    assert "unpin" in smaller.trouble
    smaller.check_integrity()
    with pytest.raises(StoreFull):
        smaller.put_block(line(256, 3), 0, payload(1000))
    smaller.close()


def test_new_limits_hold_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, quota=QUOTA)
    for seed in (1, 2):
        fill(store, line(1024, seed), BLOCK)
    store.resize(6 * BLOCK, 0)
    assert store.usage().quota == 6 * BLOCK
    assert disk_bytes(tmp_path) <= 6 * BLOCK
    assert store.lookup(line(1024, 2)).tokens == 1024
    store.check_integrity()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 50_000}))
    store.resize(QUOTA, 140_000)
    assert store.usage().blocks == 4
    store.resize(QUOTA, 1 << 40)
    assert store.usage().blocks == 4, "what cannot be reached costs nothing"
    store.close()


def test_whatever_happens_what_is_pinned_stays(tmp_path: Path) -> None:
    """Result of 40 writes, pins, unpins and new quotas: what is pinned is as it was after each."""
    chance = random.Random(3)
    store, pinned = open_store(tmp_path, quota=QUOTA), set[int]()
    held = 0
    for step in range(40):
        seed = chance.randrange(8)
        act = chance.choice(["write", "write", "pin", "unpin", "resize"])
        if act == "resize":
            store.resize(chance.randint(3, 10) * BLOCK, 0)
        elif act != "write":
            pinned = pinned | {seed} if act == "pin" and len(pinned) < 4 else pinned - {seed}
        with suppress(StoreFull):
            fill(store, line(1024, seed), BLOCK // 2)
        before = {s: store.lookup(line(1024, s)).tokens for s in pinned}
        pin(store, *(line(1024, s) for s in pinned))
        for _ in range(5):
            with suppress(StoreFull):
                store.put_block(line(256, 100 + chance.randrange(50)), 0, payload(BLOCK))
        assert {s: store.lookup(line(1024, s)).tokens for s in pinned} == before
        held += sum(before.values())
        if step % 10 == 9:
            store.check_integrity()
    assert held > 0
    assert store._vault.index.tombstones() > 20, "others were evicted"
    store.close()
