from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sessiond.metrics import REGISTRY
from sessiond.store.store import Store
from tests.store.samples import disk_bytes, files_of, fill, line, payload


def test_what_is_there_already_is_not_written_again(store: Store) -> None:
    assert store.put_block(line(256), 0, payload()) > 1000
    assert store.put_block(line(256), 0, payload()) == 0
    assert store.put_snapshot(line(300), payload()) > 1000
    assert store.put_snapshot(line(300), payload()) == 0
    assert store.usage().blocks == store.usage().snapshots == 1


def test_a_growing_tail_is_stored_once(tmp_path: Path, store: Store) -> None:
    for length in range(10, 257, 41):
        store.put_block(line(256)[:length], 0, payload(seed=length))
    assert store.usage().blocks == len(files_of(tmp_path)) == 1
    assert store.lookup(line(256)).lost == ()
    store.check_integrity()


def test_the_beginning_of_a_stored_block_is_not_written(store: Store) -> None:
    fill(store, line(300))
    assert store.put_block(line(100), 0, payload()) == 0
    assert store.put_block(line(300)[:270], 256, payload()) == 0
    assert store.usage().blocks == 2


def test_a_tail_that_goes_elsewhere_is_kept_beside_the_other(store: Store) -> None:
    one, two = line(100), line(100)
    two[99] += 1
    fill(store, one)
    fill(store, two)
    assert store.lookup(one).tokens == store.lookup(two).tokens == 100
    assert store.usage().blocks == 2


def test_a_superseded_tail_stays_while_it_is_leased(store: Store) -> None:
    fill(store, line(100))
    (old,) = store.lookup(line(100)).blocks
    with store.lease([old.key]):
        fill(store, line(200))
        assert bytes(store.read(old.key)) == payload(1000, 0)
    assert store.usage().blocks == 1
    store.check_integrity()


@pytest.mark.parametrize(
    ("length", "start"), [(0, 0), (256, 256), (300, 0), (300, 100), (10, -256)]
)
def test_what_is_no_block_is_refused(store: Store, length: int, start: int) -> None:
    with pytest.raises(ValueError, match="no block"):
        store.put_block(line(length), start, payload())


def test_there_is_no_snapshot_at_position_0(store: Store) -> None:
    with pytest.raises(ValueError, match="position 0"):
        store.put_snapshot(line(0), payload())


def test_any_buffer_can_be_a_payload(store: Store) -> None:
    array = np.arange(1000, dtype=np.float32)
    store.put_snapshot(line(5), array.data)
    store.put_snapshot(line(6), bytearray(b"x"))
    store.put_snapshot(line(7), b"")
    keys = [s.key for s in store.lookup(line(7)).snapshots]
    assert [bytes(store.read(key)) for key in keys] == [array.tobytes(), b"x", b""]


def test_bytes_written_and_on_disk_are_counted(tmp_path: Path, store: Store) -> None:
    def counted(kind: str) -> float:
        return REGISTRY.get_sample_value("sessiond_save_bytes_total", {"kind": kind}) or 0

    before = counted("block"), counted("snapshot")
    written = fill(store, line(700)), store.put_snapshot(line(700), payload())
    counts = (int(counted("block") - before[0]), int(counted("snapshot") - before[1]))
    gauge = REGISTRY.get_sample_value("sessiond_disk_bytes")
    assert counts == written
    assert gauge == store.usage().bytes == disk_bytes(tmp_path) == sum(written)


def test_a_conversation_writes_each_token_a_bounded_number_of_times(store: Store) -> None:
    """40 turns of 100 tokens, 1,000 bytes each. Result: a turn writes its tokens and its tail."""
    tokens, written = line(4000), []
    for turn in range(1, 41):
        end, total = turn * 100, 0
        for start in range((end - 100) // 256 * 256, end, 256):
            block = tokens[: min(start + 256, end)]
            total += store.put_block(block, start, bytes(1000 * (len(block) - start)))
        written.append(total)
    assert max(written) < 1000 * (256 + 100) + 5000
    assert 0.9 < sum(written[:20]) / sum(written[20:]) < 1.1
