from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from sessiond.engine.memory import Tokens, as_tokens
from sessiond.store.chain import Kind
from sessiond.store.found import State
from sessiond.store.store import Store
from tests.store.samples import file_of, fill, line, open_store, payload


def test_nothing_is_found_in_an_empty_store(store: Store) -> None:
    found = store.lookup(line(700))
    assert (found.blocks, found.snapshots, found.lost, found.tokens) == ((), (), (), 0)


def test_a_stored_line_is_found_block_by_block(store: Store) -> None:
    tokens = line(700)
    written = fill(store, tokens)
    found = store.lookup(tokens)
    assert [(b.start, b.length, b.usable) for b in found.blocks] == [
        (0, 256, 256),
        (256, 256, 256),
        (512, 188, 188),
    ]
    assert sum(b.bytes for b in found.blocks) == written == store.usage().bytes
    assert [bytes(store.read(b.key)) for b in found.blocks] == [
        payload(1000, start) for start in (0, 256, 512)
    ]


@pytest.mark.parametrize(("length", "usable"), [(690, 178), (701, 188), (2000, 188), (520, 8)])
def test_the_last_block_may_match_in_part(store: Store, length: int, usable: int) -> None:
    fill(store, line(700))
    asked = np.concatenate([line(700)[:length], line(max(0, length - 700), seed=9)])
    assert store.lookup(asked).blocks[-1].usable == usable


def test_a_line_that_leaves_inside_a_full_block_uses_its_beginning(store: Store) -> None:
    fill(store, line(700))
    asked = line(700)
    asked[300:] += 1
    assert [b.usable for b in store.lookup(asked).blocks] == [256, 44]


def test_of_several_children_the_longest_match_wins(store: Store) -> None:
    trunk, tails = line(256), [line(100, seed) for seed in (1, 2)]
    tails.append(np.concatenate([tails[0][:60], line(150, 3)]))
    for tail in tails:
        fill(store, np.concatenate([trunk, tail]))
    asked = np.concatenate([trunk, tails[0][:80], line(50, 4)])
    assert [(b.length, b.usable) for b in store.lookup(asked).blocks] == [(256, 256), (100, 80)]


def test_of_many_children_few_are_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A front ends inside a block, and 200 sessions go on from it.

    Result: a new session uses the front, an old one its whole block.
    """
    front, tails = line(300), [line(212, seed) for seed in range(1, 201)]
    for tail in tails:
        fill(store, np.concatenate([front, tail]), size=10)
    asked = Mock(wraps=store._vault.files.exists)
    monkeypatch.setattr(store._vault.files, "exists", asked)
    new = store.lookup(np.concatenate([front, line(200, 999)]))
    assert [b.usable for b in new.blocks] == [256, 44]
    assert asked.call_count <= 1 + 16
    old = store.lookup(np.concatenate([front, tails[77]]))
    assert [b.usable for b in old.blocks] == [256, 256]


def test_another_fingerprint_or_owner_finds_and_reads_nothing(tmp_path: Path, store: Store) -> None:
    fill(store, line(300))
    for stranger in ({"fingerprint": "model-b"}, {"owner": "somebody"}):
        other = open_store(tmp_path, **stranger)
        assert other.lookup(line(300)).blocks == ()
        other.close()


def test_snapshots_are_those_whose_whole_prefix_is_equal(store: Store) -> None:
    tokens = line(700)
    for position in (1, 255, 256, 257, 699, 700):
        store.put_snapshot(tokens[:position], payload(seed=position))
    store.put_snapshot(tokens[:300], payload(seed=7), "whole")
    elsewhere = tokens.copy()
    elsewhere[10] += 1
    store.put_snapshot(elsewhere[:300], payload())
    found = store.lookup(tokens[:699]).snapshots
    assert [(s.position, s.kind) for s in found] == [
        (1, Kind.SNAPSHOT),
        (255, Kind.SNAPSHOT),
        (256, Kind.SNAPSHOT),
        (257, Kind.SNAPSHOT),
        (300, Kind.WHOLE),
        (699, Kind.SNAPSHOT),
    ]
    assert bytes(store.read(found[4].key)) == payload(seed=7)


def test_the_number_of_statements_does_not_depend_on_the_length(store: Store) -> None:
    tokens = line(256 * 300 + 10)
    fill(store, tokens, size=10)
    statements: list[str] = []

    def count(*args: Any) -> None:
        statements.append(args[2])

    event.listen(Engine, "before_cursor_execute", count)
    found = store.lookup(tokens)
    event.remove(Engine, "before_cursor_execute", count)
    assert found.tokens == len(tokens)
    assert len(statements) == 5


def test_what_is_lost_on_the_path_is_named_with_its_reason(tmp_path: Path, store: Store) -> None:
    tokens = line(1000)
    fill(store, tokens)
    store.put_snapshot(tokens[:600], payload())
    found = store.lookup(tokens)
    file_of(tmp_path, found.snapshots[0].key).unlink()
    file_of(tmp_path, found.blocks[2].key).write_bytes(b"torn")
    with pytest.raises(Exception, match="4 bytes"):
        store.read(found.blocks[2].key)
    after = store.lookup(tokens)
    assert after.tokens == 512
    assert after.snapshots == ()
    assert [(lost.position, lost.reason) for lost in after.lost] == [
        (512, State.DAMAGED),
        (600, State.MISSING),
    ]


def test_a_lost_tail_counts_only_if_it_reached_further(tmp_path: Path, store: Store) -> None:
    short = line(300)
    longer = np.concatenate([short[:280], line(100, 5)])
    fill(store, short)
    fill(store, longer)
    gone = store.lookup(longer).blocks[-1]
    file_of(tmp_path, gone.key).unlink()
    assert [(x.position, x.reason) for x in store.lookup(longer).lost] == [(280, State.MISSING)]
    assert store.lookup(longer).tokens == 280
    assert store.lookup(short).lost == ()


def test_a_state_stored_again_is_no_longer_lost(tmp_path: Path, store: Store) -> None:
    fill(store, line(256))
    file_of(tmp_path, store.lookup(line(256)).blocks[0].key).unlink()
    assert len(store.lookup(line(256)).lost) == 1
    assert fill(store, line(256)) > 0
    assert store.lookup(line(256)).lost == ()
    store.check_integrity()


lines = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(
    lambda turns: np.concatenate([line(90, seed) for seed in turns])
)


@settings(max_examples=40, deadline=None)
@given(st.lists(lines, min_size=1, max_size=6), lines)
def test_a_lookup_covers_the_longest_stored_prefix(written: list[Tokens], asked: Tokens) -> None:
    """Lines of two 90-token turns in any order. Oracle: the longest prefix shared with any."""
    with TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        for tokens in written:
            fill(store, tokens, size=10)
        best = max(_common(tokens, asked) for tokens in written)
        assert store.lookup(asked).tokens == best
        store.check_integrity()
        store.close()


def _common(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    return int(np.argmin(np.append(as_tokens(a[:n] == b[:n]), 0)))
