"""Finds the stored state of a prefix.

One SQL statement for its full blocks, two for its tail, two for its snapshots, however long it is.
What many other lines have after the same blocks is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sessiond.engine.memory import Tokens
from sessiond.store.chain import BLOCK_TOKENS, Kind, snapshot_key, token_bytes
from sessiond.store.found import Lost, Stored, StoredBlock, StoredSnapshot
from sessiond.store.row import Record
from sessiond.store.siblings import FEW
from sessiond.store.vault import Vault

_SNAPSHOTS = (Kind.SNAPSHOT, Kind.WHOLE)


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
    usable: dict[str, int] = {}
    gone: list[Record] = []
    for some in _growing(vault.index.siblings(parent).nearest(token_bytes(rest))):
        usable |= some
        children = vault.settle(vault.index.records(some).values())
        block = _best([r for r in children if r.present], usable)
        covered = usable[block.key] if block else 0
        gone += [r for r in children if not r.present and usable[r.key] > covered]
        lost = Lost(start + covered, max(gone, key=lambda r: usable[r.key]).state) if gone else None
        if block:
            return _Tail(_partly(block, covered), lost)
    return _Tail(None, lost)


def _growing(nearest: Iterator[tuple[str, int]]) -> Iterator[dict[str, int]]:
    """A few first: most often the answer is among them."""
    count = 16
    while some := dict(islice(nearest, count)):
        yield some
        count *= 4


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

    crowded = vault.index.counts(path, _SNAPSHOTS)
    crowded = {parent: count for parent, count in crowded.items() if count > FEW}
    rows = vault.index.snapshots([p for p in path if p not in crowded], len(tokens))
    for start, parent in zip(range(0, len(tokens) + 1, BLOCK_TOKENS), path, strict=True):
        if parent in crowded:
            rows += vault.index.records(_possible(parent, tokens[start:])).values()
    return sorted(filter(matches, rows), key=lambda r: (r.identity.position, r.key))


def _possible(parent: str, rest: Tokens) -> list[str]:
    """Keys of all snapshots there can be of a line in the block after `parent`."""
    lengths = range(min(len(rest) + 1, BLOCK_TOKENS))
    return [snapshot_key(kind, parent, rest[:length]) for kind in _SNAPSHOTS for length in lengths]
