"""What lies in the ring, and what the ring says about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

import xxhash

from sessiond.engine.memory import Tokens
from sessiond.store.chain import Kind, block_start, chain_keys, snapshot_key, token_bytes
from sessiond.store.loss import Held, Rank


@dataclass(frozen=True, slots=True)
class RingEntry:
    """A snapshot of the first `position` tokens. `bytes` is the size of its payload."""

    key: str
    position: int
    bytes: int
    rank: Rank
    line: Hashable


@dataclass(frozen=True, slots=True)
class RingStats:
    """`bytes` is all memory the ring has, idle and reserved included; never more than `budget`."""

    bytes: int
    budget: int
    entries: int
    evictions: Counter[str]
    refused: Counter[str]


class Refusal(StrEnum):
    """Why there is no reservation. `present`: it is there, or on its way; that is not a failure."""

    PRESENT = "present"
    TOO_LARGE = "too_large"
    FULL = "full"
    NO_MEMORY = "no_memory"


class Eviction(StrEnum):
    ROOM = "room"
    DROPPED = "dropped"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a snapshot belongs: `rest` are the tokens after the chain key `parent`, as bytes."""

    key: str
    parent: str
    rest: bytes
    position: int

    @classmethod
    def at_end(cls, root: str, tokens: Tokens) -> Place:
        """The place at the end of `tokens`; its key is the one the store has for it."""
        parent, rest = chain_keys(root, tokens)[-1], tokens[block_start(len(tokens)) :]
        key = snapshot_key(Kind.SNAPSHOT, parent, rest)
        return cls(key, parent, token_bytes(rest), len(tokens))


@dataclass(slots=True, eq=False)
class Slot:
    """A snapshot with its memory. Under the ring's lock, but for the bytes while it is leased.

    The writer's reservation is a lease as well. A dropped slot lives until its last lease ends.
    `lines` are all that have a share in it; it counts as one of the first of them, `line`.
    """

    place: Place
    lines: dict[Hashable, None]
    rank: Rank
    used: int
    slab: memoryview
    size: int
    leases: int = 1
    digest: int | None = None
    dropped: bool = False

    @property
    def line(self) -> Hashable:
        return next(iter(self.lines))

    @property
    def visible(self) -> bool:
        return self.digest is not None and not self.dropped

    @property
    def payload(self) -> memoryview:
        return self.slab[: self.size]

    def hashed(self) -> int:
        return xxhash.xxh3_128_intdigest(self.payload)

    def held(self) -> Held:
        return Held(
            self.place.key,
            self.line,
            self.place.position,
            len(self.slab),
            self.rank,
            self.used,
            self.leases > 0,
        )

    def described(self) -> RingEntry:
        return RingEntry(self.place.key, self.place.position, self.size, self.rank, self.line)


class Reservation:
    """Room in the ring that one writer fills. Nobody sees it before it is published.

    `slot` and `open` are the ring's.
    """

    __slots__ = ("open", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.open = True

    @property
    def key(self) -> str:
        return self.slot.place.key

    @property
    def position(self) -> int:
        return self.slot.place.position

    @property
    def buffer(self) -> memoryview:
        """Writable, exactly the size reserved, at a page boundary; of no use once published."""
        if not self.open:
            raise ValueError("This reservation was published or withdrawn.")
        return self.slot.payload
