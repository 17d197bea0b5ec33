from __future__ import annotations

import gc
from pathlib import Path

from sessiond.store.buffers import Buffers
from sessiond.store.readahead import AHEAD
from sessiond.store.store import Store
from tests.store.samples import fill, line, open_store, payload

MIB = 1 << 20


def idle(store: Store) -> int:
    gc.collect()
    return store._vault.files.buffers.idle


def test_an_opened_store_has_the_memory_its_first_restore_needs(tmp_path: Path) -> None:
    """Result: buffers for a stream of blocks and for a snapshot, and reading takes no others."""
    tokens = line(2048)
    first = open_store(tmp_path)
    fill(first, tokens, size=MIB // 2)
    first.put_snapshot(tokens, payload(3 * MIB // 2))
    first.close()
    store = open_store(tmp_path)
    ready = idle(store)
    assert ready == (AHEAD + 2) * MIB + 2 * MIB
    found = store.lookup(tokens)
    keys = [*(b.key for b in found.blocks), found.snapshots[0].key]
    assert sum(1 for _ in store.stream(keys)) == 9
    assert idle(store) == ready
    store.close()


def test_a_store_without_states_of_this_model_takes_no_memory(tmp_path: Path) -> None:
    other = open_store(tmp_path, fingerprint="model-b")
    assert idle(other) == 0
    fill(other, line(256), size=MIB)
    other.close()
    store = open_store(tmp_path)
    assert idle(store) == 0
    store.close()


def test_what_is_stocked_never_exceeds_what_is_kept() -> None:
    buffers = Buffers(keep=3 * MIB)
    buffers.stock(MIB, 10)
    gc.collect()
    assert buffers.idle == 3 * MIB
    buffers = Buffers(keep=3 * MIB)
    buffers.stock(4 * MIB, 1)
    gc.collect()
    assert buffers.idle == 0
