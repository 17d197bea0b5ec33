"""However a state file is changed, what it holds is never handed out (invariant 4)."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.errors import StateError, StoreFailed
from sessiond.store.chain import Kind
from sessiond.store.envelope import open_envelope
from sessiond.store.store import Store
from tests.proof import record
from tests.store.mutations import HEADER_BYTE, KINDS, Mutant, Sample, mutants
from tests.store.samples import files_of, fill, line, open_store, payload

LINES = 3
LENGTH = 600
SIZE = 5000


def fill_all(store: Store) -> None:
    """Blocks of two fronts, snapshots at a boundary and beside it, and one whole state."""
    for seed in range(LINES):
        tokens = line(LENGTH, seed)
        fill(store, tokens, SIZE, seed)
        for end in (512, LENGTH):
            store.put_snapshot(tokens[:end], payload(SIZE, 50 + seed))
    store.put_snapshot(line(LENGTH), payload(SIZE, 60), "whole")


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files_of(folder)}


def samples_in(folder: Path) -> list[Sample]:
    """All the files a store may have, and as others those of another owner and model."""
    mine, others = folder / "mine", []
    for name, options in {
        "mine": {},
        "owner": {"owner": "anna"},
        "model": {"fingerprint": "model-b"},
    }.items():
        store = open_store(folder / name, **options)
        fill_all(store)
        store.close()
        others += read_files(folder / name).values()
    store = open_store(mine)
    found = []
    for key, file in sorted(read_files(mine).items()):
        known = store._vault.index.get(key)
        assert known is not None
        assert bytes(open_envelope(file, known.identity))
        found.append(Sample(known.identity, file, [other for other in others if other != file]))
    store.close()
    return found


class Loading:
    """The ways by which a file comes to be read; each must refuse all of a round's mutants."""

    def __init__(self, folder: Path, samples: list[Sample]) -> None:
        self.folder = folder
        self.samples = samples
        self.refused: Counter[str] = Counter()
        self.flipped: set[tuple[int, int]] = set()
        self.known = folder / "mine"
        self._store = open_store(self.known)

    def close(self) -> None:
        self._store.check_integrity()
        self._store.close()

    def refuse(self, round_: list[Mutant]) -> None:
        self._by_the_envelope(round_)
        self._by_the_store(round_)
        self._by_a_rebuilt_store(round_)
        self.refused.update(mutant.kind for mutant in round_)
        self.flipped |= {(mutant.target, mutant.at) for mutant in round_ if mutant.at >= 0}

    def _by_the_envelope(self, round_: list[Mutant]) -> None:
        """Of the length that was expected, so that nothing but the file's content is in the way."""
        for mutant in round_:
            with pytest.raises(StateError):
                open_envelope(mutant.file, self.samples[mutant.target].identity)

    def _by_the_store(self, round_: list[Mutant]) -> None:
        """The index knows the file, which was changed behind its back."""
        places = {path.name: path for path in files_of(self.known)}
        for mutant in round_:
            key = self.samples[mutant.target].identity.key
            places[key].write_bytes(mutant.file)
            with pytest.raises(StateError) as caught:
                self._store.read(key)
            assert not isinstance(caught.value, StoreFailed), mutant.kind
            assert not places[key].exists(), f"neither accepted nor put aside: {mutant.kind}"
        assert self._store.usage().quarantined > 0
        for mutant in round_:
            sample = self.samples[mutant.target]
            self._store._put(sample.identity, sample.payload)

    def _by_a_rebuilt_store(self, round_: list[Mutant]) -> None:
        """There is no index: what a file says of itself is all there is."""
        folder = self.folder / "rebuilt"
        for mutant in round_:
            identity = self.samples[mutant.target].identity
            shelf = "blocks" if identity.kind is Kind.BLOCK else "snapshots"
            place = folder / "cache" / shelf / identity.key[:2] / identity.key
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(mutant.file)
        store = open_store(folder)
        for mutant in round_:
            with pytest.raises(StateError):
                store.read(self.samples[mutant.target].identity.key)
        store.check_integrity()
        store.close()
        shutil.rmtree(folder)


def rounds(made: Iterator[Mutant], size: int) -> Iterator[list[Mutant]]:
    while some := list(itertools.islice(made, size)):
        yield some


def prove(folder: Path, count: int) -> Loading:
    """What was refused: all of it, or the test has failed."""
    loading = Loading(folder, samples_in(folder))
    for some in rounds(mutants(loading.samples, count), len(loading.samples)):
        loading.refuse(some)
    loading.close()
    return loading


def test_no_mutated_file_is_accepted(state_dir: Path) -> None:
    """1. Change files in sixteen ways. 2. Read each as what it was, known and found anew.

    Result: 3,000 of 3,000 are refused in all three ways, and are gone from their place.
    """
    refused = prove(state_dir, 3_000).refused
    assert refused.total() == 3_000
    assert set(refused) == {HEADER_BYTE, *KINDS}


@pytest.mark.proof_durability
@pytest.mark.timeout(3600)
def test_none_of_a_hundred_thousand_mutated_files_is_accepted(state_dir: Path) -> None:
    began = time.monotonic()
    proved = prove(state_dir, 100_000)
    refused = proved.refused
    assert refused.total() == 100_000
    headers = {(n, at) for n, sample in enumerate(proved.samples) for at in range(sample.offset)}
    assert proved.flipped == headers
    record(
        "mutated state files",
        files=refused.total(),
        refused=refused.total(),
        accepted=0,
        crashes=0,
        files_per_s=round(refused.total() / (time.monotonic() - began)),
        kinds=dict(refused),
    )


def test_a_mutant_that_is_none_would_be_accepted(state_dir: Path) -> None:
    """The proof can fail: the sound file passes each of the three ways."""
    loading = Loading(state_dir, samples_in(state_dir))
    sound = [Mutant("sound", n, sample.file) for n, sample in enumerate(loading.samples)]
    for way in (loading._by_the_envelope, loading._by_the_store, loading._by_a_rebuilt_store):
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            way(sound[:1])
    loading._store.close()
