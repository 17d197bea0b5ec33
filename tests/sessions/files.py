"""Exports for tests: a small one, and what somebody may have made of it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transfer.container import END, closing, opening
from sessiond.sessions.transfer.exporting import Contents, _find, _head, file_of
from sessiond.sessions.transfer.manifest import MANIFEST, PART, SEAL, seal
from sessiond.sessions.tree import SessionTree
from sessiond.store.store import Store
from tests.rig import Daemon
from tests.sessions.turns import make_turn

Members = list[tuple[str, bytes]]
LONG = 700
"""Tokens of the first turn: two whole blocks and a bit."""


def small_tree() -> SessionTree:
    """Two lines: 1 - 2, and 1 - 4. Number 3 is of a turn that is gone."""
    tree = SessionTree()
    tree.add(make_turn(1, prompt=range(LONG), replied=(1, 2, 3)))
    tree.add(make_turn(2, 1, "and?", kept=LONG, prompt=(9, 9), replied=(8,)))
    tree.add(make_turn(4, 1, "or?", kept=LONG + 3, prompt=(7,), replied=(6, 6)))
    return tree


def small_contents(store: Store) -> Contents:
    """With state of the first turn, and of one of the lines."""
    tree = small_tree()
    tokens = tree.path_tokens(4)
    for start in range(0, len(tokens), 256):
        end = min(start + 256, len(tokens))
        store.put_block(tokens[:end], start, bytes([start % 251]) * 3000)
    store.put_snapshot(tokens[:LONG], b"snapshot" * 100)
    record = replace(SessionRecord.new("grüße/../x", 1.0), policy="fork", title="Hi")
    lines = [(number, tree.path_tokens(number)) for number in tree.leaves()]
    return Contents(replace(_head(record, 2.0, None)), tuple(tree), _find(store, lines), store)


def joined(contents: Contents) -> bytes:
    return b"".join(bytes(part) for part in file_of(contents))


def members_of(file: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(file)) as tar:
        return [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]


def file_with(members: Iterable[tuple[str, bytes]]) -> bytes:
    """As they are, whatever their manifest says of them."""
    parts = [opening(name, len(data)) + data + closing(len(data)) for name, data in members]
    return b"".join(parts) + END


def sealed(members: Iterable[tuple[str, bytes]], **changes: Any) -> bytes:
    """With a manifest that is true of them, but for `changes` of what it says of a name."""
    kept = [(name, data) for name, data in members if name not in (MANIFEST, SEAL)]
    told = {entry["name"]: entry for entries in _manifest(members).values() for entry in entries}
    listing: dict[str, list[dict[str, Any]]] = {"members": [], "state": []}
    for name, data in kept:
        entry = {**told.get(name, {}), "name": name, "bytes": len(data)}
        entry["sha256"] = sha256(data).hexdigest()
        entry |= changes.get(name, {})
        listing["state" if name.startswith("state/") else "members"].append(entry)
    raw = json.dumps(listing).encode()
    return file_with([*kept, (MANIFEST, raw), (SEAL, seal(sha256(raw).hexdigest()))])


def with_turns(members: Members, change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    """A well sealed file whose turns were changed."""

    def changed(name: str, data: bytes) -> bytes:
        if not name.startswith("turns/"):
            return data
        turns = [json.loads(line) for line in data.splitlines()]
        change(turns)
        return b"".join(json.dumps(turn).encode() + b"\n" for turn in turns)

    return sealed([(name, changed(name, data)) for name, data in members])


def with_head(members: Members, change: Callable[[dict[str, Any]], object]) -> bytes:
    head = json.loads(dict(members)["session.json"])
    change(head)
    rest = [(name, data) for name, data in members if name != "session.json"]
    return sealed([("session.json", json.dumps(head).encode()), *rest])


async def sent(file: bytes, size: int = PART) -> AsyncIterator[bytes]:
    for at in range(0, len(file), size):
        yield file[at : at + size]


async def exported(daemon: Daemon, name: str, *, state: bool = True) -> bytes:
    file = await daemon.lifecycle.export(name, state=state)
    return b"".join([bytes(part) async for part in file.parts])


def everything(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, and what is in it."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def _manifest(members: Iterable[tuple[str, bytes]]) -> dict[str, list[dict[str, Any]]]:
    listing: dict[str, list[dict[str, Any]]] = json.loads(dict(members)[MANIFEST])
    return listing
