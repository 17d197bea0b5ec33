"""Among many blocks after one parent the right ones are found without a look at all of them."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.memory import common_prefix
from sessiond.store import siblings as module
from sessiond.store.chain import token_bytes, tokens_of
from sessiond.store.siblings import FEW, Families, Siblings
from sessiond.store.store import Store
from tests.store.samples import fill, line

# 256 and 65,536 differ in one byte: order is by bytes, what is in common by tokens.
TOKENS = st.lists(st.sampled_from([0, 1, 256, 65_536]), max_size=6).map(
    lambda found: token_bytes(np.asarray(found, np.int32))
)
CHILDREN = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), TOKENS, max_size=12)


def in_common(one: bytes, other: bytes) -> int:
    return common_prefix(tokens_of(one), tokens_of(other))


@given(CHILDREN, TOKENS, st.data())
def test_it_finds_what_a_look_at_all_of_them_finds(
    children: dict[str, bytes], asked: bytes, data: st.DataObject
) -> None:
    family = Siblings(())
    for key, tokens in children.items():
        family.add(key, tokens)
        family.add(key, tokens)
    for key in data.draw(st.sets(st.sampled_from(sorted(children)))) if children else ():
        family.discard(key)
        family.discard(key)
        del children[key]
    near = list(family.nearest(asked))
    assert [count for _, count in near] == sorted((count for _, count in near), reverse=True)
    expected = {key: in_common(tokens, asked) for key, tokens in children.items()}
    assert dict(near) == {key: count for key, count in expected.items() if count}
    assert len(near) == len(dict(near))
    extending = list(family.extending(asked))
    assert sorted(extending) == sorted(k for k, t in children.items() if t.startswith(asked))
    whole = {k: t for k, t in children.items() if t}
    beginning = {k for k, t in whole.items() if asked.startswith(t) and t != asked}
    assert {whole[key] for key in family.beginning(asked)} == {whole[key] for key in beginning}
    assert set(family.beginning(asked)) <= beginning


def test_a_large_family_is_read_once_and_follows_what_happens() -> None:
    families, many = Families(), [(f"k{n}", token_bytes(line(8, n))) for n in range(FEW + 1)]
    read = Mock(return_value=many)
    families.of("p", read)
    families.added("p", "new", token_bytes(line(8, 999)))
    families.removed(["k3", "unknown"])
    family = families.of("p", read)
    assert read.call_count == 1
    assert (len(family), [k for k, n in family.nearest(token_bytes(line(8, 999))) if n == 8]) == (
        FEW + 1,
        ["new"],
    )
    small = Mock(return_value=many[:FEW])
    families.of("q", small)
    families.of("q", small)
    assert small.call_count == 2


def test_families_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2 * FEW + 2)
    families, many = Families(), [(f"k{n}", token_bytes(line(8, n))) for n in range(FEW + 1)]
    reads = [Mock(return_value=many) for _ in range(3)]
    for parent, read in enumerate(reads):
        families.of(str(parent), read)
    for parent in (2, 1, 0):
        families.of(str(parent), reads[parent])
    assert [read.call_count for read in reads] == [2, 1, 1]


def test_what_is_stored_beside_many_others_reads_none_of_them_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. 100 sessions go on from a front that ends inside a block.
    2. Blocks of another one are stored, a short one first, and superseded.
    Result: the others are read once; what is superseded is gone.
    """
    front = line(300)
    for seed in range(1, 101):
        fill(store, np.concatenate([front, line(212, seed)]), size=10)
    index = store._vault.index
    read = Mock(wraps=index._children)
    monkeypatch.setattr(index, "_children", read)
    blocks = store.usage().blocks
    own = np.concatenate([front, line(212, 999)])
    for length in (400, 450, 512):
        assert store.put_block(own[:length], 256, b"x" * 10)
    assert store.put_block(own[:460], 256, b"x" * 10) == 0
    assert store.put_block(front, 256, b"x" * 10) == 0
    assert store.usage().blocks == blocks + 1
    assert [b.usable for b in store.lookup(own).blocks] == [256, 256]
    assert read.call_count == 0


def test_what_many_others_captured_after_a_front_is_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = line(300)
    for seed in range(1, 101):
        store.put_snapshot(np.concatenate([front, line(50, seed)]), b"x" * 10)
    own = np.concatenate([front, line(400, 999)])
    for length in (300, 310, 700):
        store.put_snapshot(own[:length], b"x" * 10)
    index = store._vault.index
    settled = Mock(wraps=index.records)
    monkeypatch.setattr(index, "records", settled)
    every = Mock(wraps=index.snapshots)
    monkeypatch.setattr(index, "snapshots", every)
    assert [s.position for s in store.lookup(own).snapshots] == [300, 310, 700]
    (parents, _), _ = every.call_args
    assert len(parents) == 2


def test_how_far_others_share_is_known_from_their_blocks(store: Store) -> None:
    own = line(1000)
    fill(store, own, size=10)
    assert store.shared([own]) == 0
    leaves = np.concatenate([own[:600], line(100, 1)])
    fill(store, leaves, size=10)
    assert store.shared([own]) == 600
    assert store.shared([own, leaves]) == 0
    further = np.concatenate([own, line(100, 2)])
    fill(store, further, size=10)
    assert store.shared([own, leaves]) == 1000
