"""Finds the stored state of a prefix.

One SQL statement for its full blocks, one for its tail, one for its snapshots, however long it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessiond.engine.memory import Tokens, common_prefix
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
    rest = tokens[start : start + BLOCK_TOKENS]
    if not len(rest):
        return _Tail()
    matched = [
        (common_prefix(tokens_of(r.identity.tokens), rest), r) for r in vault.index.children(parent)
    ]
    usable = {r.key: n for n, r in matched if n}
    children = vault.settle([r for n, r in matched if n])
    block = _best([r for r in children if r.present], usable)
    covered = usable[block.key] if block else 0
    gone = [r for r in children if not r.present and usable[r.key] > covered]
    lost = max(gone, key=lambda r: usable[r.key]).state if gone else None
    return _Tail(
        _partly(block, covered) if block else None,
        Lost(start + covered, lost) if lost else None,
    )


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
