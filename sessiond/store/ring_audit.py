"""Whether what the ring knows of itself is true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from sessiond.errors import StoreCorrupt
from sessiond.store.chain import BLOCK_TOKENS, Kind, snapshot_key, tokens_of
from sessiond.store.ring_entry import Slot
from sessiond.store.slabs import Slabs

Index = Mapping[str, Slot]


def audit(
    slabs: Slabs, slots: Set[Slot], by_key: Index, by_parent: Mapping[str, Index], *, deep: bool
) -> None:
    """Raises StoreCorrupt with all that is wrong. `deep` compares the checksums of all payloads."""
    faults = [
        *_budget(slabs, slots),
        *_index(slots, by_key, by_parent),
        *(fault for slot in slots for fault in _slot(slot, deep)),
    ]
    if faults:
        raise StoreCorrupt("The ring contradicts itself: " + "; ".join(faults) + ".")


def _budget(slabs: Slabs, slots: Set[Slot]) -> Iterator[str]:
    held = sum(len(slot.slab) for slot in slots)
    if held != slabs.used:
        yield f"{slabs.used} bytes counted, {held} held"
    if slabs.bytes > slabs.budget:
        yield f"{slabs.bytes} bytes are more than the budget of {slabs.budget}"
    if len({id(slot.slab) for slot in slots}) != len(slots):
        yield "two snapshots share memory"


def _index(slots: Set[Slot], by_key: Index, by_parent: Mapping[str, Index]) -> Iterator[str]:
    if set(by_key.values()) != {slot for slot in slots if not slot.dropped}:
        yield "the index is not what is held"
    if [key for key, slot in by_key.items() if slot.place.key != key]:
        yield "an entry stands under a foreign key"
    below = {
        (parent, key, slot) for parent, index in by_parent.items() for key, slot in index.items()
    }
    if below != {(slot.place.parent, key, slot) for key, slot in by_key.items()}:
        yield "parents and keys disagree"
    if not all(by_parent.values()):
        yield "a parent has no entry"


def _slot(slot: Slot, deep: bool) -> Iterator[str]:
    place, name = slot.place, slot.place.key[:12]
    if snapshot_key(Kind.SNAPSHOT, place.parent, tokens_of(place.rest)) != place.key:
        yield f"{name} is not the key of its tokens"
    if place.position % BLOCK_TOKENS != len(place.rest) // 4:
        yield f"{name} stands at {place.position} with {len(place.rest) // 4} tokens of its own"
    if not 0 < slot.size <= len(slot.slab):
        yield f"{name} has {slot.size} bytes in {len(slot.slab)}"
    if slot.leases < 0 or (slot.leases == 0 and (slot.dropped or slot.digest is None)):
        yield f"{name} is held by nobody, and lost"
    if deep and slot.visible and slot.hashed() != slot.digest:
        yield f"{name} is damaged"
