"""The verified cache of KV blocks and snapshots on disk.

Everything in it can be computed again, so anything doubtful is refused, explained and forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Literal

import numpy as np

from sessiond.engine.memory import Tokens
from sessiond.errors import StateForeign, StateMissing, StoreFailed, StoreFull
from sessiond.metrics import SAVE_SECONDS, STORE_RESTORED, STORE_WRITTEN
from sessiond.store import audit
from sessiond.store.chain import (
    BLOCK_TOKENS,
    Kind,
    block_key,
    block_start,
    chain_keys,
    root_key,
    snapshot_key,
    token_bytes,
)
from sessiond.store.envelope import Buffer, Identity, seal
from sessiond.store.found import Reconciled, Stored, StoreVerify, Usage
from sessiond.store.lookup import find
from sessiond.store.readahead import AHEAD, read_ahead
from sessiond.store.room import disk_failure
from sessiond.store.row import Record
from sessiond.store.sharing import shared
from sessiond.store.vault import NOT_SAVED, Vault

_READERS = 2
_THREAD_START_S = 0.001
"""Each reader sleeps so long at the start, so that there are two of them."""


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"The state directory cannot be used: {error}.") from error


class Store:
    """One directory, seen under one fingerprint and owner. Any thread may call anything.

    `quota` is the most bytes all files together may have, `keep_free` what stays free of the disk.
    Every method may raise StoreFailed when index or files cannot be used: count it as a miss."""

    @_usable()
    def __init__(
        self,
        directory: Path,
        index_path: Path,
        *,
        fingerprint: str,
        owner: str = "",
        quota: int,
        keep_free: int,
    ) -> None:
        """Rebuilds the index from the files when there is none, or none this version can use."""
        self.fingerprint = fingerprint
        self.owner = owner
        self._root = root_key(fingerprint, owner)
        self._vault = Vault(directory, index_path, quota=quota, keep_free=keep_free)
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="store-read")
        if self._vault.index.fresh:
            self.reconcile()
        self._vault.shrink()
        with suppress(StoreFailed):
            self._get_ready()

    def of(self, owner: str) -> Store:
        """The same directory as `owner` sees it: no state of another is ever found or shared."""
        if owner == self.owner:
            return self
        seen = copy(self)
        seen.owner = owner
        seen._root = root_key(self.fingerprint, owner)
        return seen

    def under(self, fingerprint: str) -> Store:
        """The same directory as another model or setting sees it."""
        seen = copy(self)
        seen.fingerprint = fingerprint
        seen._root = root_key(fingerprint, self.owner)
        return seen

    @_usable()
    def lookup(self, tokens: Tokens) -> Stored:
        """What is stored of the state of `tokens`, and what was once. Marks nothing as used."""
        path = chain_keys(self._root, tokens)
        with self._vault.lock:
            return find(self._vault, path, tokens)

    @_usable()
    def shared(self, lines: Sequence[Tokens]) -> int:
        """How many tokens of the first of `lines` any other line begins with, as far as its blocks
        say that are stored."""
        path, own = chain_keys(self._root, lines[0]), [token_bytes(line) for line in lines]
        with self._vault.lock:
            return shared(self._vault.index, path, own)

    def touch(self, keys: Collection[str]) -> None:
        """These were just used."""
        with self._vault.lock:
            self._vault.index.touch(keys, self._vault.tick())

    def put_block(self, tokens: Tokens, start: int, payload: Buffer) -> int:
        """Stores the block `[start, len(tokens))` of a prefix; bytes written, 0 if not needed.

        `start` is a multiple of 256, the block at most 256 tokens long. A shorter block with the
        same beginning is superseded. Raises StoreFull; what was stored is intact then."""
        length = len(tokens) - start
        if start % BLOCK_TOKENS or not 1 <= length <= BLOCK_TOKENS:
            raise ValueError(f"no block: [{start}, {len(tokens)})")
        parent, rest = chain_keys(self._root, tokens[:start])[-1], tokens[start:]
        identity = self._identity(Kind.BLOCK, block_key(parent, rest), parent, start, rest)
        with self._vault.lock:
            index, stored = self._vault.index, self._present(identity.key)
            if not stored and index.extends(parent, identity.tokens):
                return 0
            superseded = index.beginnings(parent, identity.tokens)
        written = self._put(identity, payload)
        if superseded:
            self._vault.drop(superseded)
        return written

    def put_snapshot(
        self, tokens: Tokens, payload: Buffer, kind: Literal["snapshot", "whole"] = "snapshot"
    ) -> int:
        """Stores the snapshot at position `len(tokens)`; bytes written, 0 if it is there already.

        Raises StoreFull; what was stored is intact then."""
        if not len(tokens):
            raise ValueError("no snapshot at position 0: there is no state yet")
        start = block_start(len(tokens))
        parent, rest = chain_keys(self._root, tokens)[-1], tokens[start:]
        key = snapshot_key(Kind(kind), parent, rest)
        return self._put(self._identity(Kind(kind), key, parent, start, rest), payload)

    def read(self, key: str) -> memoryview:
        """The verified payload, in a buffer of its own that nobody else has.

        Raises StateMissing, StateDamaged, StateForeign or StateNewer; it is lost then."""
        with self._vault.lock:
            record = self._vault.index.get(key)
        return self._read(key, record)

    def stream(self, keys: Collection[str]) -> Iterator[memoryview]:
        """`read` for each key in order, ahead in other threads; at most four payloads exist.

        Lease the keys while it runs, and close the iterator when it is left early."""
        with self._vault.lock:
            records = self._vault.index.records(keys)
        return read_ahead(self._pool, lambda key: self._read(key, records.get(key)), keys)

    def will_read(self, tokens: Tokens) -> int:
        """What is stored of `tokens` is wanted soon; how many files those are. Blocks shortly."""
        stored = self.lookup(tokens)
        for block in stored.blocks:
            self._vault.files.will_read(Kind.BLOCK, block.key)
        for snapshot in stored.snapshots[-1:]:
            self._vault.files.will_read(snapshot.kind, snapshot.key)
        return len(stored.blocks) + len(stored.snapshots[-1:])

    def lease(self, keys: Collection[str]) -> AbstractContextManager[None]:
        """Neither evicted nor dropped inside the context."""
        return self._vault.lease(keys)

    @_usable()
    def drop(self, keys: Collection[str]) -> int:
        """Removes superseded states for good; how many went.

        Leased ones go when their lease ends; blocks that other stored states stand on stay."""
        return self._vault.drop(keys)

    @property
    def quota(self) -> int:
        """Bytes that all files together may have; on the way to a smaller quota still more."""
        return self._vault.quota

    @property
    def written(self) -> int:
        """Bytes of files written since it was opened, by all owners."""
        return self._vault.bytes_written

    @_usable()
    def pin(self, keys: Collection[str]) -> None:
        """The states that are never evicted, whatever becomes of the quota, and no others.

        Of all owners together. They can be dropped. Kept over a restart."""
        self._vault.pin(keys)

    @_usable()
    def resize(self, quota: int, keep_free: int) -> None:
        """New limits in bytes: what exceeds them is evicted before it returns. Others get their
        turn in between. One at a time."""
        self._vault.resize(quota, keep_free)

    @_usable()
    def collect(self, fingerprints: Collection[str], before: float) -> int:
        """Removes state not used since then, Unix seconds, of fingerprints that are neither among
        these nor the store's own; and temporary files that nobody writes. How many states went."""
        return self._vault.collect({*fingerprints, self.fingerprint}, int(max(0.0, before) * 1e9))

    @property
    def trouble(self) -> str:
        """Why new state cannot be saved at present, and the way out; "" where it can."""
        return self._vault.trouble.text

    def usage(self) -> Usage:
        with self._vault.lock:
            vault, totals = self._vault, self._vault.totals
            held = len(vault.quarantine)
            return Usage(vault.bytes, vault.quota, totals.blocks, totals.snapshots, held)

    @_usable()
    def room(self) -> int:
        """Bytes that can be written `sparing`."""
        return self._vault.room_beside(self.fingerprint)

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Inside, no state of this fingerprint is evicted: StoreFull where others leave no room."""
        self._vault.spared = self.fingerprint
        try:
            yield
        finally:
            self._vault.spared = ""

    @_usable()
    def verify(self, progress: Callable[[int, int], None] | None = None) -> StoreVerify:
        """Reads everything, of all fingerprints. `progress(done, all)` is called for every file."""
        return audit.verify(self._vault, progress)

    @_usable()
    def reconcile(self) -> Reconciled:
        """Makes index and files agree again, by listing them; fit for a background thread."""
        return audit.reconcile(self._vault)

    @_usable()
    def check_integrity(self) -> None:
        """Raises StoreCorrupt if index, files and budget disagree."""
        audit.check_integrity(self._vault)

    @_usable()
    def sync(self) -> None:
        """On disk after this: everything written before. One `syncfs`, not one fsync a file."""
        self._vault.files.sync()
        with self._vault.lock:
            self._vault.index.checkpoint()

    def close(self) -> None:
        """Waits for running reads. Nothing may be called afterwards; closing twice is fine."""
        self._pool.shutdown(cancel_futures=True)
        with self._vault.lock:
            vault = self._vault
            vault.closed = True
            vault.index.close(None if vault.writing else vault.totals)

    def _get_ready(self) -> None:
        """Pages, threads and statements for the first restore, which somebody waits for."""
        index, buffers = self._vault.index, self._vault.files.buffers
        for kind, count in ((Kind.BLOCK, AHEAD + 2), (Kind.SNAPSHOT, 1)):
            size = index.largest(self.fingerprint, kind)
            if size:
                buffers.stock(size, count)
        list(self._pool.map(time.sleep, [_THREAD_START_S] * _READERS))
        self.lookup(np.zeros(BLOCK_TOKENS + 1, np.int32))

    def _identity(self, kind: Kind, key: str, parent: str, start: int, rest: Tokens) -> Identity:
        return Identity(kind, self.fingerprint, self.owner, key, parent, start, token_bytes(rest))

    def _present(self, key: str) -> bool:
        record = self._vault.index.get(key)
        return record is not None and record.present

    def _put(self, identity: Identity, payload: Buffer) -> int:
        vault = self._vault
        head = seal(identity, payload, created=time.time_ns())
        size = len(head) + memoryview(payload).nbytes
        try:
            if not vault.admit(identity, size):
                return 0
            with SAVE_SECONDS.labels(str(identity.kind)).time():
                self._write(identity, [head, payload])
        except OSError as error:
            why = disk_failure(error, vault.files.directory)
            vault.trouble.begins(f"{NOT_SAVED} {why}", size)
            raise StoreFull(f"Not stored: {why}", key=identity.key) from error
        except (StoreFull, StoreFailed) as error:
            vault.trouble.begins(f"{NOT_SAVED} {error}", size)
            raise
        vault.written(identity.key)
        vault.trouble.ends(size)
        STORE_WRITTEN.labels(str(identity.kind)).inc(size)
        return size

    def _write(self, identity: Identity, parts: list[Buffer]) -> None:
        try:
            self._vault.files.write(identity.kind, identity.key, parts)
        except BaseException:
            self._vault.withdraw(identity)
            raise

    @_usable()
    def _read(self, key: str, record: Record | None) -> memoryview:
        if record is None or key in self._vault.writing:
            raise StateMissing("Not stored.", key=key)
        if not record.present:
            raise StateMissing(f"No longer stored: {record.state}.", key=key)
        identity = record.identity
        if (identity.fingerprint, identity.owner) != (self.fingerprint, self.owner):
            raise StateForeign("Of another model, setting or owner.", key=key)
        payload = self._vault.fetch(record)
        STORE_RESTORED.inc(payload.nbytes)
        return payload
