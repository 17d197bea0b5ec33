"""The ring: snapshots of all sessions in host memory, within one budget of bytes.

Memory is counted before it is allocated and used again when its snapshot goes. Of several entries
the one goes whose loss costs least. Nothing is visible before it is complete, nothing is handed out
whose checksum differs, and nothing goes while somebody reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock

from sessiond.engine.memory import Tokens
from sessiond.errors import StateDamaged, StateMissing
from sessiond.metrics import EVICTIONS, RING_BUDGET, RING_BYTES, RING_ENTRIES, RING_REFUSED
from sessiond.store.chain import chain_keys, root_key, token_bytes
from sessiond.store.loss import Held, Rank, victims
from sessiond.store.ring_audit import audit
from sessiond.store.ring_entry import (
    Eviction,
    Place,
    Refusal,
    Reservation,
    RingEntry,
    RingStats,
    Slot,
)
from sessiond.store.slabs import Slabs, paged


class Ring:
    """Any thread may call anything. With the store's `fingerprint`, keys are those of the store."""

    def __init__(self, budget: int, fingerprint: str = "") -> None:
        """`budget` in bytes; 0 refuses every capture."""
        self._fingerprint = fingerprint
        self._lock = Lock()
        self._slabs = Slabs(budget)
        self._slots: set[Slot] = set()
        self._by_key: dict[str, Slot] = {}
        self._by_parent: dict[str, dict[str, Slot]] = {}
        self._clock = 0
        self._evictions: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._measure()

    # --- writing

    def reserve(
        self, owner: str, line: Hashable, tokens: Tokens, rank: Rank, size: int
    ) -> Reservation | Refusal:
        """Room for a snapshot of `size` bytes at the end of `tokens`; what costs least makes way.

        One that is there already counts as used, and its rank rises to `rank`.
        """
        if size < 1 or not len(tokens):
            raise ValueError(f"no snapshot: {size} bytes at position {len(tokens)}")
        place = Place.at_end(root_key(self._fingerprint, owner), tokens)
        coming = Held(place.key, line, place.position, paged(size), rank, used=0, leased=True)
        with self._lock:
            now = self._tick()
            present = self._by_key.get(place.key)
            if present:
                present.used, present.rank = now, max(present.rank, rank)
                present.lines.setdefault(line)
                return Refusal.PRESENT
            refusal = self._make_room(replace(coming, used=now))
            if refusal:
                return self._refuse(refusal)
            try:
                slab = self._slabs.take(size)
            except OSError:
                return self._refuse(Refusal.NO_MEMORY)
            return Reservation(self._add(Slot(place, {line: None}, rank, now, slab, size)))

    def publish(self, reservation: Reservation, size: int) -> bool:
        """Make the first `size` bytes of the buffer visible; nobody may write to it any more.

        False if its line was dropped meanwhile. Raises ValueError if it was published or withdrawn,
        or for a size that was not reserved; the reservation then stays.
        """
        slot = reservation.slot
        with self._lock:
            if not reservation.open or not 0 < size <= slot.size:
                raise ValueError(f"{size} bytes cannot be published: open is {reservation.open}")
            reservation.open = False
            slot.size = size
        digest = slot.hashed()
        with self._lock:
            slot.digest = digest
            self._end_lease(slot)
            self._measure()
            return not slot.dropped

    def withdraw(self, reservation: Reservation) -> None:
        """Give the room back. Does nothing after `publish`, or the second time."""
        with self._lock:
            if reservation.open:
                reservation.open = False
                self._drop(reservation.slot)
                self._end_lease(reservation.slot)
                self._measure()

    # --- reading

    def find(self, owner: str, tokens: Tokens) -> list[RingEntry]:
        """All snapshots of a beginning of `tokens`, lowest position first. Marks none as used."""
        path = chain_keys(root_key(self._fingerprint, owner), tokens)
        raw = token_bytes(tokens)
        with self._lock:
            found = [
                slot.described()
                for parent in path
                for slot in self._by_parent.get(parent, {}).values()
                if slot.visible and _ends_in(slot.place, raw)
            ]
        return sorted(found, key=lambda entry: entry.position)

    @contextmanager
    def lease(self, key: str, line: Hashable = None) -> Iterator[memoryview]:
        """The payload, read-only and verified, for use inside the block only; it counts as used.

        A `line` that goes on from it has a share in it from then on.
        Raises StateMissing, or StateDamaged: it is dropped then.
        """
        slot = self._borrow(key, line)
        try:
            if slot.hashed() != slot.digest:
                self._evict_damaged(slot)
                raise StateDamaged("A snapshot in memory was changed.", key=key)
            with slot.payload.toreadonly() as payload:
                yield payload
        finally:
            with self._lock:
                self._end_lease(slot)
                self._measure()

    def entries(self) -> list[RingEntry]:
        with self._lock:
            return [slot.described() for slot in self._by_key.values() if slot.visible]

    # --- ranks and lines

    def demote(self, keys: Iterable[str]) -> int:
        """Make these ordinary boundaries, but for fronts; how many were more than that."""
        with self._lock:
            found = [self._by_key[key] for key in keys if key in self._by_key]
            more = [slot for slot in found if Rank.BOUNDARY < slot.rank < Rank.FRONT]
            for slot in more:
                slot.rank = Rank.BOUNDARY
            return len(more)

    def drop_line(self, predicate: Callable[[Hashable], bool]) -> int:
        """Drop all entries that only lines have for which `predicate` is true; how many those were.

        What is being written is never published, what is being read goes with its last lease.
        """
        with self._lock:
            gone = []
            for slot in self._by_key.values():
                others = {line: None for line in slot.lines if not predicate(line)}
                if others:
                    slot.lines = others
                else:
                    gone.append(slot)
            for slot in gone:
                self._evict(slot, Eviction.DROPPED)
            self._measure()
            return len(gone)

    # --- about itself

    def close(self) -> None:
        """All memory is given back, at the end of every use: nothing is kept from then on."""
        with self._lock:
            for kept in (self._slots, self._by_key, self._by_parent):
                kept.clear()
            self._slabs = Slabs(0)
            self._measure()

    def stats(self) -> RingStats:
        with self._lock:
            return RingStats(
                bytes=self._slabs.bytes,
                budget=self._slabs.budget,
                entries=sum(slot.visible for slot in self._by_key.values()),
                evictions=self._evictions.copy(),
                refused=self._refused.copy(),
            )

    def check_integrity(self, *, deep: bool = False) -> None:
        """Raises StoreCorrupt if sums, budget and index disagree; `deep` also reads every payload.

        No other thread gets in meanwhile.
        """
        with self._lock:
            audit(self._slabs, self._slots, self._by_key, self._by_parent, deep=deep)

    # --- inside, under the lock

    def _make_room(self, coming: Held) -> Refusal | None:
        if coming.bytes > self._slabs.budget:
            return Refusal.TOO_LARGE
        need = self._slabs.lacking(coming.bytes)
        held = [slot.held() for slot in self._by_key.values()] if need else []
        going = victims([*held, coming], need)
        if going is None:
            return Refusal.FULL
        for key in going:
            self._evict(self._by_key[key], Eviction.ROOM)
        return None

    def _add(self, slot: Slot) -> Slot:
        self._slots.add(slot)
        self._by_key[slot.place.key] = slot
        self._by_parent.setdefault(slot.place.parent, {})[slot.place.key] = slot
        self._measure()
        return slot

    def _evict(self, slot: Slot, why: Eviction) -> None:
        self._evictions[why] += 1
        EVICTIONS.labels("ring", why).inc()
        self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        """Out of the index at once, out of memory when nobody holds it."""
        if not slot.dropped:
            slot.dropped = True
            place = slot.place
            del self._by_key[place.key]
            siblings = self._by_parent[place.parent]
            del siblings[place.key]
            if not siblings:
                del self._by_parent[place.parent]
            self._free(slot)

    def _end_lease(self, slot: Slot) -> None:
        slot.leases -= 1
        self._free(slot)

    def _free(self, slot: Slot) -> None:
        if slot.dropped and not slot.leases:
            self._slots.remove(slot)
            self._slabs.give_back(slot.slab)

    def _refuse(self, refusal: Refusal) -> Refusal:
        self._refused[refusal] += 1
        RING_REFUSED.labels(refusal).inc()
        return refusal

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _measure(self) -> None:
        RING_BYTES.set(self._slabs.bytes)
        RING_BUDGET.set(self._slabs.budget)
        RING_ENTRIES.set(len(self._by_key))

    # --- inside, with the lock free

    def _borrow(self, key: str, line: Hashable) -> Slot:
        with self._lock:
            slot = self._by_key.get(key)
            if slot is None or not slot.visible:
                raise StateMissing("The snapshot is not in memory any more.", key=key)
            slot.leases += 1
            slot.used = self._tick()
            if line is not None:
                slot.lines.setdefault(line)
            return slot

    def _evict_damaged(self, slot: Slot) -> None:
        with self._lock:
            if not slot.dropped:
                self._evict(slot, Eviction.DAMAGED)


def _ends_in(place: Place, raw: bytes) -> bool:
    """Whether the tokens `raw` go on from the chain key of `place` with all of its own."""
    stop = 4 * place.position
    return stop <= len(raw) and raw[stop - len(place.rest) : stop] == place.rest
