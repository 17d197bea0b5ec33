"""Where the state of a prompt's beginning comes from, as the engine is told to fetch it."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.engine.sequence import Owner


@dataclass(frozen=True, slots=True)
class BlockImport:
    """A stored block of positions [start, …); positions from `upto` on are trimmed."""

    key: str
    start: int
    upto: int


@dataclass(frozen=True, slots=True)
class Landing:
    """Make `seq` hold exactly the first `position` tokens of a prompt.

    `source` is the sequence whose cells [0, keep) are used, None for none; it may be `seq` itself,
    which then is rewound in place. Then come the blocks in order, then the snapshot or whole state
    named by `snapshot` (its payload is the last one), if the memory needs it there.
    """

    seq: int
    position: int
    source: int | None = None
    keep: int = 0
    blocks: tuple[BlockImport, ...] = ()
    snapshot: str | None = None
    whole: bool = False
    owner: Owner | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Store keys in the order in which their payloads are consumed."""
        blocks = tuple(block.key for block in self.blocks)
        return (*blocks, self.snapshot) if self.snapshot else blocks
