from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.memory import as_tokens
from sessiond.store.chain import (
    BLOCK_TOKENS,
    Kind,
    block_key,
    chain_keys,
    root_key,
    snapshot_key,
    token_bytes,
    tokens_of,
)
from tests.store.samples import line

ids = st.integers(-(2**31), 2**31 - 1)


def test_keys_stand_at_every_full_block() -> None:
    root = root_key("model", "me")
    keys = chain_keys(root, line(700))
    assert keys[0] == root
    assert keys[1] == block_key(root, line(700)[:256])
    assert keys[2] == block_key(keys[1], line(700)[256:512])
    assert len(keys) == 3
    assert all(len(key) == 64 and set(key) <= set("0123456789abcdef") for key in keys)


@given(st.integers(0, 1100), st.integers(0, 1100))
def test_lines_share_keys_exactly_as_far_as_they_share_blocks(length: int, change: int) -> None:
    tokens = line(length)
    other = tokens.copy()
    other[change : change + 1] += 1
    shared = min(change, length) // BLOCK_TOKENS if change < length else length // BLOCK_TOKENS
    mine, theirs = chain_keys("r", tokens), chain_keys("r", other)
    assert mine[: shared + 1] == theirs[: shared + 1]
    assert not set(mine[shared + 1 :]) & set(theirs[shared + 1 :])


def test_fingerprint_and_owner_are_fields_of_their_own() -> None:
    roots = {root_key(*pair) for pair in [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]}
    assert len(roots) == 4


def test_kinds_never_share_a_key() -> None:
    tokens = line(20)
    keys = {
        block_key("p", tokens),
        snapshot_key(Kind.SNAPSHOT, "p", tokens),
        snapshot_key(Kind.WHOLE, "p", tokens),
    }
    assert len(keys) == 3


@given(st.lists(ids, max_size=300))
def test_tokens_survive_their_bytes(values: list[int]) -> None:
    assert tokens_of(token_bytes(as_tokens(values))).tolist() == values


def test_keys_do_not_depend_on_how_the_array_is_laid_out() -> None:
    tokens = line(512)
    assert block_key("p", tokens[::2]) == block_key("p", np.ascontiguousarray(tokens[::2]))
