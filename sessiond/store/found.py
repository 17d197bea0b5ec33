"""What the store answers with. Positions and lengths in tokens, sizes in bytes of the file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessiond.store.chain import Kind


class State(StrEnum):
    """Of a row of the index. All but `present` are tombstones: why the state is no longer there."""

    PRESENT = "present"
    EVICTED = "evicted"
    MISSING = "missing"
    DAMAGED = "damaged"
    FOREIGN = "foreign"
    NEWER = "newer"


@dataclass(frozen=True, slots=True)
class Totals:
    """Of what is present; `bytes` of files."""

    bytes: int = 0
    blocks: int = 0
    snapshots: int = 0

    def plus(self, kind: Kind, size: int, count: int = 1) -> Totals:
        """With `count` more files of `size` bytes, or fewer."""
        block = count if kind is Kind.BLOCK else 0
        return Totals(
            self.bytes + count * size, self.blocks + block, self.snapshots + count - block
        )


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Tokens `[start, start + length)`, of which the first `usable` are those asked for."""

    key: str
    start: int
    length: int
    usable: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    key: str
    position: int
    bytes: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Lost:
    """State that was stored once.

    `position` is a lost snapshot's own, or the first one that blocks do not cover."""

    position: int
    reason: State


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks go on from 0 without a gap, all but the last fully usable; the rest is by position."""

    blocks: tuple[StoredBlock, ...] = ()
    snapshots: tuple[StoredSnapshot, ...] = ()
    lost: tuple[Lost, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens the blocks cover."""
        return self.blocks[-1].start + self.blocks[-1].usable if self.blocks else 0


@dataclass(frozen=True, slots=True)
class Usage:
    """`bytes` is all that counts against `quota`: states, writes under way, quarantined files."""

    bytes: int
    quota: int
    blocks: int
    snapshots: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class StoreVerify:
    """Blocks and snapshots found sound, the bytes of their files; keys of those that were not."""

    blocks: int = 0
    snapshots: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Files taken into the index, files removed or quarantined, and rows whose file was gone."""

    adopted: int = 0
    removed: int = 0
    missing: int = 0
