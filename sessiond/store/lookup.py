"""Finds the stored state of a prefix.

One SQL statement for its full blocks, two for its tail, one for its snapshots, however long it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sessiond.engine.memory import Tokens
from sessiond.store.chain import BLOCK_TOKENS, token_bytes, tokens_of
from sessiond.store.found import Lost, Stored, StoredBlock, StoredSnapshot
from sessiond.store.row import Record
from sessiond.store.vault import Vault


@dataclass(frozen=True, slots=True)
class _Tail:
    """What goes on from the full blocks, and a lost block that would have gone on further."""

    block: StoredBlock | None = None
    lost: Lost | None = None


def find(vault: Vault, path: Sequence[str], tokens: Tokens) -> Stored:
    """`path` are the chain keys of `tokens`. The caller holds the vault's lock."""
    blocks = _full_blocks(vault, path)
    tail = _tail(vault, path[len(blocks)], tokens, len(blocks) * BLOCK_TOKENS)
    snapshots = vault.settle(_snapshots(vault, path, tokens))
    lost = [Lost(r.identity.position, r.state) for r in snapshots if not r.present]
    return Stored(
        blocks=(*blocks, *([tail.block] if tail.block else [])),
        snapshots=tuple(
            StoredSnapshot(r.key, r.identity.position, r.bytes, r.kind)
            for r in snapshots
            if r.present
        ),
        lost=tuple(
            sorted([*lost, *([tail.lost] if tail.lost else [])], key=lambda one: one.position)
        ),
    )


def _full_blocks(vault: Vault, path: Sequence[str]) -> list[StoredBlock]:
    rows = vault.index.records(path[1:])
    wanted = [rows[key] for key in path[1:] if key in rows]
    present = {r.key: r for r in vault.settle(wanted) if r.present}
    blocks: list[StoredBlock] = []
    for key in path[1:]:
        if key not in present:
            break
        start = len(blocks) * BLOCK_TOKENS
        blocks.append(StoredBlock(key, start, BLOCK_TOKENS, BLOCK_TOKENS, present[key].bytes))
    return blocks


def _tail(vault: Vault, parent: str, tokens: Tokens, start: int) -> _Tail:
    """A front that many sessions share may have a child for each of them: few are looked at."""
    rest, lost = tokens[start : start + BLOCK_TOKENS], None
    if not len(rest):
        return _Tail()
    usable = _usable(vault.index.children(parent), rest)
    gone: list[Record] = []
    for keys in _growing(sorted(usable, key=lambda key: (-usable[key], key))):
        children = vault.settle(vault.index.records(keys).values())
        block = _best([r for r in children if r.present], usable)
        covered = usable[block.key] if block else 0
        gone += [r for r in children if not r.present and usable[r.key] > covered]
        lost = Lost(start + covered, max(gone, key=lambda r: usable[r.key]).state) if gone else None
        if block:
            return _Tail(_partly(block, covered), lost)
    return _Tail(None, lost)


def _growing(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """A few first: most often the answer is among them."""
    at, count = 0, 16
    while at < len(keys):
        yield keys[at : at + count]
        at, count = at + count, 4 * count


def _usable(children: Iterable[tuple[str, bytes]], rest: Tokens) -> dict[str, int]:
    """How many tokens of `rest` each child begins with, by key; only those with any."""
    by_length: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
    for key, raw in children:
        by_length[len(raw) // 4].append((key, raw))
    usable: dict[str, int] = {}
    for length, alike in by_length.items():
        n = min(length, len(rest))
        rows = tokens_of(b"".join(raw for _, raw in alike)).reshape(len(alike), length)
        differs = rows[:, :n] != rest[:n]
        counts = np.where(differs.any(axis=1), differs.argmax(axis=1), n)
        usable |= {key: int(c) for (key, _), c in zip(alike, counts, strict=True) if c}
    return usable


def _partly(record: Record, usable: int) -> StoredBlock:
    identity = record.identity
    length = identity.position - identity.start
    return StoredBlock(record.key, identity.start, length, usable, record.bytes)


def _best(children: Sequence[Record], usable: dict[str, int]) -> Record | None:
    """The longest match, and of equal ones the smallest to read."""
    return min(children, key=lambda r: (-usable[r.key], r.bytes, r.key), default=None)


def _snapshots(vault: Vault, path: Sequence[str], tokens: Tokens) -> list[Record]:
    def matches(record: Record) -> bool:
        identity = record.identity
        return identity.tokens == token_bytes(tokens[identity.start : identity.position])

    rows = vault.index.snapshots(path, len(tokens))
    return sorted(filter(matches, rows), key=lambda r: (r.identity.position, r.key))
