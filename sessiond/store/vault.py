"""Index, files and quarantine under one lock and one budget.

The budget counts every byte before it is written and until after it is removed: states, writes
under way and quarantined files never exceed the quota. Any thread may call; methods take the lock.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock

from sessiond.errors import StateDamaged, StateError, StateMissing, StoreFailed, StoreFull
from sessiond.metrics import STORE_BYTES, STORE_EVICTED
from sessiond.store.chain import Kind
from sessiond.store.envelope import Identity, open_envelope
from sessiond.store.files import Files, shelf_of
from sessiond.store.found import State
from sessiond.store.index import Index
from sessiond.store.quarantine import Quarantine
from sessiond.store.quota import Candidate, removable, victims
from sessiond.store.row import Record

_BAD_FILE = (errno.EIO, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EBADMSG, errno.EUCLEAN)
_WINDOW = 256


class Vault:
    """`totals` are those of the present rows, what is being written among them."""

    def __init__(self, directory: Path, index_path: Path, *, quota: int, keep_free: int) -> None:
        self.lock = RLock()
        self.quota = quota
        self.keep_free = keep_free
        self.files = Files(directory)
        self.files.prepare()
        self.files.clear_incoming()
        self.index = Index(index_path)
        self.quarantine = Quarantine(self.files)
        self.writing: dict[str, int] = {}
        self.totals = self.index.totals_then or self.index.totals()
        self._leases: Counter[str] = Counter()
        self._doomed: set[str] = set()
        self._tick = self.index.last_tick()

    @property
    def bytes(self) -> int:
        """All that counts against the quota."""
        return self.totals.bytes + self.quarantine.bytes

    def tick(self) -> int:
        """Nanoseconds since 1970, always later than the last one, even when the clock goes back."""
        with self.lock:
            self._tick = max(self._tick + 1, time.time_ns())
            return self._tick

    def admit(self, identity: Identity, size: int) -> bool:
        """Makes room for a file and accounts for it; False when it is there already: then touched.

        Raises StoreFull, and nothing is changed then."""
        with self.lock:
            record = self.index.get(identity.key)
            if record is not None and record.present:
                self.index.touch([identity.key], self.tick())
                return False
            self._make_room(size, {identity.parent})
            self.index.add(identity, size, self.tick())
            self.writing[identity.key] = size
            self._doomed.discard(identity.key)
            self._account(identity.kind, size)
            return True

    def written(self, key: str) -> None:
        """The file admitted as `key` is in place."""
        with self.lock:
            del self.writing[key]

    def withdraw(self, identity: Identity) -> None:
        """The file admitted as this could not be written."""
        with self.lock:
            size = self.writing.pop(identity.key)
            self.index.remove([identity.key])
            self._account(identity.kind, size, -1)

    def fetch(self, record: Record) -> memoryview:
        """The verified payload; the lock is not held while reading.

        Raises StateMissing, StateDamaged, StateForeign or StateNewer, and the state is lost then;
        or StoreFailed, and nothing is known about it."""
        try:
            return self._verified(record)
        except StoreFailed:
            raise
        except StateError as error:
            self.lose(record, State(error.reason))
            raise

    def lose(self, record: Record, reason: State) -> None:
        """Makes a tombstone of a state whose file is gone or refused; that file is quarantined."""
        with self.lock:
            current = self.index.get(record.key)
            if current is None or not current.present or record.key in self.writing:
                return
            if reason is not State.MISSING:
                self.quarantine.take(record.kind, record.key, reason)
            elif self.files.exists(record.kind, record.key):
                return
            self.index.bury([record.key], reason, self.tick())
            self._account(record.kind, current.bytes, -1)

    def settle(self, records: Collection[Record]) -> list[Record]:
        """The records without those being written; those whose file is gone become tombstones."""
        settled: list[Record] = []
        for record in records:
            if record.key in self.writing:
                continue
            if record.present and not self.files.exists(record.kind, record.key):
                self.lose(record, State.MISSING)
                record = replace(record, state=State.MISSING)
            settled.append(record)
        return settled

    def drop(self, keys: Collection[str]) -> int:
        """Removes states nobody needs any more, without tombstones; how many went.

        Blocks that others stand on stay. What is leased goes when the lease ends."""
        with self.lock:
            self._doomed.update(key for key in keys if self._leases[key])
            gone = list(removable(self.index.candidates(keys), self._held()))
            with self._unlinked(gone) as keys:
                self.index.remove(keys)
            return len(gone)

    @contextmanager
    def lease(self, keys: Collection[str]) -> Iterator[None]:
        """Neither evicted nor dropped inside the context; leases add up."""
        held = list(keys)
        with self.lock:
            self._leases.update(held)
        try:
            yield
        finally:
            with self.lock:
                self._leases.subtract(held)
                self._leases += Counter()
                due = self._doomed - self._leases.keys()
                self._doomed -= due
                if due:
                    self.drop(due)

    def shrink(self) -> None:
        """Evicts what a smaller quota leaves no room for."""
        with self.lock:
            self._make_room(0, set())

    def adopt(self, identity: Identity, size: int, tick: int) -> None:
        """Takes a file that is in place into the index."""
        with self.lock:
            self.index.add(identity, size, tick)
            self._account(identity.kind, size)

    def _make_room(self, size: int, keep: set[str]) -> None:
        over_quota = self.bytes + size - self.quota
        pending = sum(self.writing.values()) + size
        short_of_disk = self.keep_free + pending - self.files.free() if size else 0
        need = max(over_quota, short_of_disk)
        if need <= 0:
            return
        if size > self.quota:
            raise StoreFull(f"{size} bytes do not fit into the store's quota of {self.quota}.")
        chosen = self._victims(need - self.quarantine.bytes, self._held() | keep)
        if chosen is None:
            raise StoreFull(
                f"No room for {size} bytes: quota {self.quota}, keep_free {self.keep_free}, "
                f"{self.bytes} in use. Raise the quota or free disk space."
            )
        self.quarantine.make_room(need)
        self._evict(chosen, "quota" if over_quota >= short_of_disk else "disk")

    def _victims(self, need: int, held: set[str]) -> tuple[Candidate, ...] | None:
        window = _WINDOW
        while True:
            candidates = self.index.oldest(window)
            chosen = victims(candidates, need, held)
            if chosen is not None or len(candidates) < window:
                return chosen
            window *= 4

    def _evict(self, chosen: Collection[Candidate], reason: str) -> None:
        with self._unlinked(chosen) as keys:
            self.index.bury(keys, State.EVICTED, self.tick())
        STORE_EVICTED.labels(reason).inc(len(chosen))

    @contextmanager
    def _unlinked(self, chosen: Collection[Candidate]) -> Iterator[list[str]]:
        """Removes the files, lets the caller change their rows, and only then frees their bytes."""
        records = self.index.records([candidate.key for candidate in chosen]).values()
        for record in records:
            self.files.remove(shelf_of(record.kind), record.key[:2], record.key)
        yield [record.key for record in records]
        for record in records:
            self._account(record.kind, record.bytes, -1)

    def _held(self) -> set[str]:
        return set(self._leases) | self.writing.keys()

    def _account(self, kind: Kind, size: int, count: int = 1) -> None:
        self.totals = self.totals.plus(kind, size, count)
        STORE_BYTES.set(self.bytes)

    def _verified(self, record: Record) -> memoryview:
        try:
            buffer = self.files.read(record.kind, record.key, record.bytes)
        except FileNotFoundError as error:
            raise StateMissing("The file is gone.", key=record.key) from error
        except OSError as error:
            kind = StateDamaged if error.errno in _BAD_FILE else StoreFailed
            raise kind(f"The file cannot be read: {error.strerror}.", key=record.key) from error
        return open_envelope(buffer, record.identity)
