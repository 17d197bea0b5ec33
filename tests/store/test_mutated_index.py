"""A changed index costs a rebuild or a miss; it never crashes, and nothing wrong is read."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from sessiond.errors import StateError, StoreFailed
from sessiond.store import receipt
from sessiond.store.found import Totals
from sessiond.store.store import Store
from tests.proof import record
from tests.store.samples import fill, line, open_store, payload

LINES = 4
LENGTH = 700
SIZE = 300
END = 512


def fill_all(store: Store) -> None:
    for seed in range(LINES):
        fill(store, line(LENGTH, seed), SIZE, seed)
        store.put_snapshot(line(LENGTH, seed)[:END], payload(SIZE, 50 + seed))


def changed(file: bytes, chance: random.Random) -> bytes:
    """The index as a disk may give it back."""
    how = chance.randrange(6)
    at = chance.randrange(len(file))
    if how == 0:
        return file[:at]
    if how == 1:
        page = at // 4096 * 4096
        return file[:page] + bytes(4096) + file[page + 4096 :]
    if how == 2:
        return file[:at] + chance.randbytes(64) + file[at + 64 :]
    if how == 3:
        return file + chance.randbytes(4096)
    data = bytearray(file)
    for _ in range(1 if how == 4 else 20):
        data[chance.randrange(len(data) if how == 5 else 200)] ^= 1 << chance.randrange(8)
    return bytes(data)


class Mutated:
    """A store whose index was changed between two starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "state" / "index.sqlite"
        self.seen: Counter[str] = Counter()
        store = open_store(folder)
        fill_all(store)
        self._right = {
            **{(seed, start): payload(SIZE, seed * 10_000 + start) for seed in range(LINES)
               for start in range(0, LENGTH, 256)},
            **{(seed, -1): payload(SIZE, 50 + seed) for seed in range(LINES)},
        }  # fmt: skip
        store.close()
        self._sound = self._path.read_bytes()

    def start(self, chance: random.Random) -> None:
        """Three times in a row, as a service that is started again would. One that has failed in
        use has a new index the next time."""
        for beside in self._path.parent.glob("index.sqlite*"):
            beside.unlink()
        self._path.write_bytes(changed(self._sound, chance))
        if chance.randrange(2):
            # Changed under the hands of SQLite, with time and size as they were: it is believed.
            receipt.leave(self._path, Totals(9_999, 12, 4))
        works = True
        for which in ("first", "second", "third"):
            worked, works = works, self._works(which)
            assert worked or works, "it failed again after it had failed"

    def _works(self, which: str) -> bool:
        store = open_store(self._folder)
        try:
            found = self._found(store)
            fill_all(store)
        except StoreFailed:
            self.seen[f"{which}: failed in use"] += 1
            return False
        finally:
            store.close()
        self.seen[f"{which}: all there" if found == len(self._right) else f"{which}: some"] += 1
        return True

    def _found(self, store: Store) -> int:
        found = 0
        for seed in range(LINES):
            stored = store.lookup(line(LENGTH, seed))
            wanted = [(block.key, (seed, block.start)) for block in stored.blocks]
            wanted += [(snapshot.key, (seed, -1)) for snapshot in stored.snapshots]
            for key, place in wanted:
                try:
                    assert bytes(store.read(key)) == self._right[place]
                    found += 1
                except StoreFailed:
                    raise
                except StateError:
                    self.seen["refused"] += 1
        return found


def prove(folder: Path, count: int) -> Counter[str]:
    mutated, chance = Mutated(folder), random.Random(11)
    for _ in range(count):
        mutated.start(chance)
    return mutated.seen


def test_a_mutated_index_never_gives_anything_wrong(state_dir: Path) -> None:
    """1. Change the index. 2. Start, read all, write all. 3. Start again, twice.

    Result: what is read is right, what fails has failed once, and after it the store works.
    """
    seen = prove(state_dir, 30)
    assert seen["first: failed in use"] > 0
    assert seen["third: all there"] > seen["first: all there"] > 0


@pytest.mark.proof_durability
@pytest.mark.timeout(3600)
def test_no_mutated_index_of_many_gives_anything_wrong(state_dir: Path) -> None:
    seen = prove(state_dir, 3_000)
    record("mutated indexes", files=3_000, wrong=0, crashes=0, seen=dict(seen))
