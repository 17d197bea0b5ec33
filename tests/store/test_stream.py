from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sessiond.errors import StateDamaged, StateMissing
from sessiond.store.buffers import Buffers
from sessiond.store.readahead import AHEAD, read_ahead
from sessiond.store.store import Store
from tests.store.samples import file_of, fill, line, open_store, payload

SIZE = 300_000


def keys_of(store: Store, length: int) -> list[str]:
    fill(store, line(length), SIZE)
    return [block.key for block in store.lookup(line(length)).blocks]


def test_states_come_in_order(store: Store) -> None:
    keys = keys_of(store, 256 * 12)
    got = [bytes(state) for state in store.stream(keys)]
    assert got == [payload(SIZE, start) for start in range(0, 256 * 12, 256)]
    assert list(store.stream([])) == []


def test_states_held_on_to_are_never_overwritten(store: Store) -> None:
    """Holds views, slices and arrays over states while others are read into memory used again."""
    keys = keys_of(store, 256 * 6)
    expected = [payload(SIZE, start) for start in range(0, 256 * 6, 256)]
    slices = [state[10:] for state in store.stream(keys)]
    arrays = [np.frombuffer(state, dtype=np.uint8)[20:] for state in store.stream(keys)]
    for _ in range(3):
        for state, whole in zip(store.stream(keys), expected, strict=True):
            assert state == whole
    assert [bytes(part) for part in slices] == [whole[10:] for whole in expected]
    assert [part.tobytes() for part in arrays] == [whole[20:] for whole in expected]


def test_an_error_comes_at_its_place(tmp_path: Path, store: Store) -> None:
    keys = keys_of(store, 256 * 6)
    path = file_of(tmp_path, keys[3])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    stream = store.stream(keys)
    assert [bytes(next(stream)) for _ in range(3)] == [
        payload(SIZE, start) for start in (0, 256, 512)
    ]
    with pytest.raises(StateDamaged) as caught:
        next(stream)
    assert caught.value.key == keys[3]
    assert list(stream) == []
    assert store.lookup(line(256 * 6)).tokens == 768


def test_an_unknown_key_is_missing(store: Store) -> None:
    with pytest.raises(StateMissing):
        next(store.stream(["0" * 64]))


def test_no_more_is_read_ahead_than_promised_and_nothing_after_closing() -> None:
    started: list[str] = []
    lock = threading.Lock()

    def read(key: str) -> memoryview:
        with lock:
            started.append(key)
        return memoryview(key.encode())

    with ThreadPoolExecutor(2) as pool:
        stream = read_ahead(pool, read, [str(n) for n in range(50)])
        for used in range(1, 6):
            next(stream)
            with lock:
                assert len(started) <= used + AHEAD
        stream.close()  # type: ignore[attr-defined]
        count = len(started)
    assert len(started) == count <= 5 + AHEAD


def test_memory_goes_back_when_the_last_view_is_gone() -> None:
    buffers = Buffers(keep=3 << 20)
    view = buffers.take(1 << 20)
    part = view[5:6]
    view.release()
    assert buffers.idle == 0
    del part, view
    gc.collect()
    assert buffers.idle == 1 << 20
    views = [buffers.take((1 << 20) - n) for n in range(5)]
    assert buffers.idle == 0
    assert np.frombuffer(views[0], np.uint8).ctypes.data % 4096 == 0
    del views
    assert buffers.idle == 3 << 20


def test_many_threads_may_use_one_store(tmp_path: Path) -> None:
    """Four threads in a store too small for all. Result: right bytes or a miss, within budget."""
    store = open_store(tmp_path, quota=2_000_000)
    wrong: list[str] = []

    def work(seed: int) -> None:
        for round_ in range(6):
            tokens = line(1024, (seed + round_) % 5)
            fill(store, tokens, 100_000, seed=(seed + round_) % 5)
            found = store.lookup(tokens)
            keys = [block.key for block in found.blocks]
            store.touch(keys)
            with store.lease(keys):
                for block in found.blocks:
                    try:
                        got = bytes(store.read(block.key))
                    except StateMissing:
                        break
                    if got != payload(100_000, (seed + round_) % 5 * 10_000 + block.start):
                        wrong.append(block.key)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()
    assert wrong == []
    assert store.usage().bytes <= 2_000_000
    assert store.verify().damaged == ()
    store.check_integrity()
    store.close()
