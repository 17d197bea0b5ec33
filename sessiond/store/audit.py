"""Holds the index against what is on disk: by reading it all, by listing it, or as a self-check."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace

from sessiond.errors import (
    StateDamaged,
    StateError,
    StateForeign,
    StateMissing,
    StateNewer,
    StoreCorrupt,
)
from sessiond.store.chain import Kind
from sessiond.store.envelope import read_header
from sessiond.store.files import BLOCKS, SHELVES, shelf_of
from sessiond.store.found import Reconciled, State, StoreVerify
from sessiond.store.row import Record
from sessiond.store.vault import Vault

_PAGE = 200
_KEY = re.compile(r"[0-9a-f]{64}")
_KINDS = {shelf: [kind for kind in Kind if shelf_of(kind) == shelf] for shelf in SHELVES}


def verify(vault: Vault, progress: Callable[[int, int], None] | None) -> StoreVerify:
    """Reads and checks every stored state of every fingerprint; those refused are quarantined."""
    with vault.lock:
        totals = vault.totals
    seen = StoreVerify()
    for done, record in enumerate(_everything(vault), start=1):
        seen = _verified(vault, record, seen)
        if progress is not None:
            progress(done, max(done, totals.blocks + totals.snapshots))
    return seen


def reconcile(vault: Vault) -> Reconciled:
    """Adopts files without a row, removes what is none of ours, buries rows without a file.

    The lock is held for one of at most 512 folders at a time."""
    result = Reconciled()
    for shelf, prefix in _folders(vault):
        with vault.lock:
            done = _reconcile_folder(vault, shelf, prefix)
        result = Reconciled(
            result.adopted + done.adopted,
            result.removed + done.removed,
            result.missing + done.missing,
        )
    vault.shrink()
    return result


def check_integrity(vault: Vault) -> None:
    """Raises StoreCorrupt unless index, files and budget agree in every byte. Reads no payload."""
    with vault.lock:
        totals = vault.index.totals()
        _require(totals == vault.totals, f"{totals} indexed, {vault.totals} counted")
        within = vault.bytes <= vault.quota or vault.crammed
        _require(within, f"{vault.bytes} bytes, quota {vault.quota}")
        for shelf, prefix in _folders(vault):
            indexed = _without_writing(vault, vault.index.sizes(_KINDS[shelf], prefix))
            listed = vault.files.listed(shelf, prefix)
            found = _without_writing(vault, {k: s.st_size for k, s in listed.items()})
            odd = dict(indexed.items() ^ found.items())
            _require(not odd, f"{shelf}/{prefix}: index and files differ in {sorted(odd)[:3]}")


def _folders(vault: Vault) -> list[tuple[str, str]]:
    """Shelf and name of every folder on disk or in the index."""
    with vault.lock:
        indexed = vault.index.prefixes()
    return [
        (shelf, prefix)
        for shelf in SHELVES
        for prefix in sorted(indexed | vault.files.folders(shelf))
    ]


def _everything(vault: Vault) -> Iterator[Record]:
    key = ""
    while True:
        with vault.lock:
            page = vault.index.after(key, _PAGE)
        if not page:
            return
        yield from (r for r in page if r.present and r.key not in vault.writing)
        key = page[-1].key


def _verified(vault: Vault, record: Record, seen: StoreVerify) -> StoreVerify:
    try:
        vault.fetch(record)
    except StateMissing:
        with vault.lock:
            current = vault.index.get(record.key)
        gone = current is not None and current.state in (State.MISSING, State.PRESENT)
        return replace(seen, missing=(*seen.missing, record.key)) if gone else seen
    except (StateDamaged, StateForeign, StateNewer):
        return replace(seen, damaged=(*seen.damaged, record.key))
    block = record.kind is Kind.BLOCK
    return replace(
        seen,
        blocks=seen.blocks + block,
        snapshots=seen.snapshots + (not block),
        bytes=seen.bytes + record.bytes,
    )


def _reconcile_folder(vault: Vault, shelf: str, prefix: str) -> Reconciled:
    listed = vault.files.listed(shelf, prefix)
    indexed = _without_writing(vault, vault.index.sizes(_KINDS[shelf], prefix))
    gone = [record for key, record in vault.index.records(indexed.keys() - listed.keys()).items()]
    for record in gone:
        vault.lose(record, State.MISSING)
    adopted = removed = 0
    for name in listed.keys() - indexed.keys() - vault.writing.keys():
        regular = stat.S_ISREG(listed[name].st_mode)
        if not regular or not _KEY.fullmatch(name) or not name.startswith(prefix):
            vault.files.remove(shelf, prefix, name)
            removed += 1
        elif _adopt(vault, shelf, name):
            adopted += 1
        else:
            removed += 1
    return Reconciled(adopted, removed, len(gone))


def _adopt(vault: Vault, shelf: str, key: str) -> bool:
    kind = Kind.BLOCK if shelf == BLOCKS else Kind.SNAPSHOT
    try:
        head, size = vault.files.head(kind, key)
        header = read_header(head, key=key)
        identity = header.identity
        named = identity.key == key and shelf_of(identity.kind) == shelf
        if not named or not identity.genuine or header.file_bytes != size:
            raise StateDamaged("Name, header and length do not agree.", key=key)
    except OSError:
        vault.quarantine.take(kind, key, State.DAMAGED)
        return False
    except StateError as error:
        vault.quarantine.take(kind, key, error.reason)
        return False
    vault.adopt(identity, size, min(header.created, vault.tick()))
    return True


def _without_writing(vault: Vault, sizes: dict[str, int]) -> dict[str, int]:
    return {key: size for key, size in sizes.items() if key not in vault.writing}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise StoreCorrupt(f"The store does not add up: {message}.")
