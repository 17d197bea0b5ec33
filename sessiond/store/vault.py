"""Index, files and quarantine under one lock and one budget.

The budget counts every byte before it is written and until after it is removed: states, writes
under way and quarantined files never exceed the quota. Any thread may call; methods take the lock.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import RLock

from sessiond.errors import StateDamaged, StateError, StateMissing, StoreFailed, StoreFull
from sessiond.metrics import EVICTIONS, STORE_BYTES, STORE_COLLECTED, STORE_PINNED
from sessiond.store.chain import Kind
from sessiond.store.envelope import Identity, open_envelope
from sessiond.store.files import Files, shelf_of
from sessiond.store.found import State
from sessiond.store.index import Index
from sessiond.store.quarantine import Quarantine
from sessiond.store.quota import Candidate, least, removable, victims
from sessiond.store.room import Room
from sessiond.store.row import Record
from sessiond.store.trouble import Trouble

_BAD_FILE = (errno.EIO, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EBADMSG, errno.EUCLEAN)
_WINDOW = 256
_AT_ONCE = 64
"""So many files are removed before others get the lock, when a smaller quota takes effect."""
_BREATH_S = 0.001
"""A thread that lets go of a lock and takes it again is faster than those that wait for it."""
NOT_SAVED = "Model state is not saved, which costs time after a restart and nothing else:"
logger = logging.getLogger(__name__)


class Vault:
    """`totals` are those of the present rows, what is being written among them. While `spared` is a
    fingerprint, nothing of it is evicted."""

    def __init__(self, directory: Path, index_path: Path, *, quota: int, keep_free: int) -> None:
        self.lock = RLock()
        self.quota = quota
        self.keep_free = keep_free
        self.trouble = Trouble(logger, "Model state is saved again.")
        self.files = Files(directory)
        self.files.prepare()
        self.files.clear_incoming()
        self.index = Index(index_path)
        try:
            self._begin()
        except StoreFailed:  # if that was damage, the index is doubted now and made anew
            self.index.close()
            self.index = Index(index_path)
            self._begin()
        self.quarantine = Quarantine(self.files)
        self.writing: dict[str, int] = {}
        self.bytes_written = 0
        self.spared = ""
        self.closed = False
        self._leases: Counter[str] = Counter()
        self._doomed: set[str] = set()
        if self.index.totals_then is None:
            self._sweep()

    def _begin(self) -> None:
        self.totals = self.index.totals_then or self.index.totals()
        self._pinned = self.index.pins()
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
                self._doomed.discard(identity.key)
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
            self.bytes_written += self.writing.pop(key)

    def withdraw(self, identity: Identity) -> None:
        """The file admitted as this could not be written."""
        with self.lock:
            size = self.writing.pop(identity.key)
            self.index.remove([identity.key])
            self._account(identity.kind, size, -1)

    def fetch(self, record: Record) -> memoryview:
        """The verified payload; the lock is not held while reading.

        Raises StateMissing, StateDamaged, StateForeign or StateNewer, and the state is lost then,
        whether the index has room to say so or not; or StoreFailed, and nothing is known about it.
        """
        try:
            return self._verified(record)
        except StoreFailed:
            raise
        except StateError as error:
            with suppress(StoreFull):
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
                self.shrink()

    def pin(self, keys: Collection[str]) -> None:
        """These states, present or not, are never evicted from now on, and no others."""
        with self.lock:
            wanted = set(keys)
            more, fewer = wanted - self._pinned, self._pinned - wanted
            if more or fewer:
                self.index.pin(more, fewer)
                self._pinned = wanted
                self.shrink()
            STORE_PINNED.set(self.index.pinned_bytes() if wanted else 0)

    def resize(self, quota: int, keep_free: int) -> None:
        """Evicts what the new limits leave no room for, a few at a time: until then the limits are
        as far as that has come. Not twice at a time.
        """
        with self.lock:
            if self.closed:
                return
            self.keep_free = keep_free
            short = self._short_of_disk(0)
            if self._victims(short, self._bound()) is None:
                short = 0
        while freed := self._approach(quota, keep_free, short):
            short -= freed
            time.sleep(_BREATH_S)
        with self.lock:
            self.quota, self.keep_free = quota, keep_free
            if not self.closed:
                self._say_if_over()

    def _approach(self, quota: int, keep_free: int, short: int) -> int:
        """One step to these limits, `short` bytes below `keep_free`; how many bytes went."""
        with self.lock:
            self.keep_free = keep_free
            over = self.bytes - quota
            over -= self.quarantine.make_room(over)
            chosen = [] if self.closed else self._first(max(over, short))
            self._evict(chosen, "disk" if short > over else "quota")
            self.quota = max(quota, self.bytes)
            self.keep_free -= max(0, self._short_of_disk(0))
            return sum(candidate.bytes for candidate in chosen)

    def _first(self, need: int) -> list[Candidate]:
        """What goes first of all that has to go for `need` bytes."""
        window = _WINDOW
        while need > 0:
            candidates, bound = self.index.oldest(window), self._bound()
            chosen = list(islice(least(candidates, need, bound), _AT_ONCE))
            if chosen or len(candidates) < window:
                return chosen
            window *= 4
        return []

    def shrink(self) -> None:
        """Evicts what a smaller quota leaves no room for; what is pinned or leased stays."""
        with self.lock:
            over = self.bytes - self.quota
            if over > 0:
                over -= self.quarantine.make_room(over)
                everything = self.index.oldest(-1)
                self._evict(least(everything, over, self._bound()), "quota")
            self._say_if_over()

    def _say_if_over(self) -> None:
        if self.bytes > self.quota:
            self.trouble.begins(f"{NOT_SAVED} {self._room(0, disk=False)}", 1)

    def room_beside(self, fingerprint: str) -> int:
        """Bytes that can be written without evicting any state of this fingerprint."""
        with self.lock:
            free = min(self.quota - self.bytes, -self._short_of_disk(0))
            return max(0, free + self.quarantine.bytes + self.index.bytes_beside(fingerprint))

    @property
    def crammed(self) -> bool:
        """Nothing more can be evicted."""
        return not list(removable(self.index.oldest(-1), self._bound()))

    def collect(self, fingerprints: Collection[str], tick: int) -> int:
        """Removes what is of no use to anybody: files of writes that broke off, and state of other
        fingerprints that was not used since `tick`. How many states went.
        """
        gone = 0
        while True:
            with self.lock:
                dropped = self.drop(self.index.foreign(fingerprints, tick, _WINDOW))
            gone += dropped
            if not dropped:
                break
        with self.lock:
            self.files.clear_incoming(self.writing)
        STORE_COLLECTED.inc(gone)
        return gone

    def adopt(self, identity: Identity, size: int, tick: int) -> None:
        """Takes a file that is in place into the index."""
        with self.lock:
            self.index.add(identity, size, tick)
            self._account(identity.kind, size)

    def _make_room(self, size: int, keep: set[str]) -> None:
        over_quota, short_of_disk = self.bytes + size - self.quota, self._short_of_disk(size)
        need, disk = max(over_quota, short_of_disk), short_of_disk > over_quota
        if need <= 0:
            return
        chosen = None
        if size <= self.quota:
            held = self._bound() | keep
            chosen = self._victims(need - self.quarantine.bytes, held, self.spared)
        if chosen is None:
            raise StoreFull(str(self._room(size, disk=disk)))
        self.quarantine.make_room(need)
        self._evict(chosen, "disk" if disk else "quota")

    def _short_of_disk(self, size: int) -> int:
        """Bytes to free, so that so many more leave free what stays free."""
        return self.keep_free + sum(self.writing.values()) + size - self.files.free()

    def _room(self, size: int, *, disk: bool) -> Room:
        pinned = self.index.pinned_bytes() if self._pinned else 0
        free, directory = self.files.free(), self.files.directory
        return Room(directory, size, self.quota, self.bytes, pinned, self.keep_free, free, disk)

    def _victims(self, need: int, held: set[str], spared: str = "") -> tuple[Candidate, ...] | None:
        window = _WINDOW
        while True:
            candidates = self.index.oldest(window, spared)
            chosen = victims(candidates, need, held)
            if chosen is not None or len(candidates) < window:
                return chosen
            window *= 4

    def _evict(self, chosen: Sequence[Candidate], reason: str) -> None:
        """Nothing goes that the index cannot say is gone, but the first: it makes room for that.

        Raises StoreFull.
        """
        if not chosen:
            return
        records = self.index.records([candidate.key for candidate in chosen])
        try:
            self.index.bury(records, State.EVICTED, self.tick())
        except StoreFull:
            self._unlink(records[chosen[0].key])
            self.index.bury(records, State.EVICTED, self.tick())
        self._clear_away(list(records.values()))
        EVICTIONS.labels("disk", reason).inc(len(chosen))

    def _clear_away(self, buried: list[Record]) -> None:
        """The files of these; whose cannot be removed is there again."""
        try:
            while buried:
                self._unlink(buried[-1])
                gone = buried.pop()
                self._account(gone.kind, gone.bytes, -1)
        except OSError:
            for record in buried:
                self.index.add(record.identity, record.bytes, self.tick())
            raise

    def _sweep(self) -> None:
        """Removes the files of evicted states that an end in between has left."""
        for record in self.index.evicted():
            if self.files.exists(record.kind, record.key):
                self._unlink(record)

    def _unlink(self, record: Record) -> None:
        self.files.remove(shelf_of(record.kind), record.key[:2], record.key)

    @contextmanager
    def _unlinked(self, chosen: Collection[Candidate]) -> Iterator[list[str]]:
        """Removes the files, lets the caller change their rows, and only then frees their bytes."""
        records = self.index.records([candidate.key for candidate in chosen]).values()
        for record in records:
            self._unlink(record)
        yield [record.key for record in records]
        for record in records:
            self._account(record.kind, record.bytes, -1)

    def _bound(self) -> set[str]:
        """What is not evicted."""
        return self._held() | self._pinned

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
