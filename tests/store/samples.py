"""Lines of tokens, payloads and stores for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sessiond.engine.memory import Tokens
from sessiond.store.chain import BLOCK_TOKENS, Kind, block_key, root_key, token_bytes
from sessiond.store.envelope import Identity
from sessiond.store.store import Store

ROOM = 1 << 30


def line(length: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 50_000, length, dtype=np.int32)


def payload(size: int = 1000, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def open_store(folder: Path, **options: Any) -> Store:
    settings: dict[str, Any] = {"fingerprint": "model-a", "quota": ROOM, "keep_free": 0}
    return Store(folder / "cache", folder / "state" / "index.sqlite", **settings | options)


def fill(store: Store, tokens: Tokens, size: int = 1000, seed: int = 0) -> int:
    """Puts all blocks of a line, in order; bytes written."""
    written = 0
    for start in range(0, len(tokens), BLOCK_TOKENS):
        block = tokens[: start + BLOCK_TOKENS]
        written += store.put_block(block, start, payload(size, seed * 10_000 + start))
    return written


def files_of(folder: Path) -> list[Path]:
    """State files, blocks first."""
    shelves = (folder / "cache" / "blocks", folder / "cache" / "snapshots")
    return [path for shelf in shelves for path in sorted(shelf.glob("*/*"))]


def file_of(folder: Path, key: str) -> Path:
    (found,) = (path for path in files_of(folder) if path.name == key)
    return found


def disk_bytes(folder: Path) -> int:
    """Of every file that counts against the quota, temporary ones too."""
    skip = ("CACHEDIR.TAG",)
    return sum(
        p.lstat().st_size
        for p in (folder / "cache").rglob("*")
        if p.is_file() and p.name not in skip
    )


def block_identity(**changes: Any) -> Identity:
    tokens = changes.pop("tokens", line(256))
    parent = root_key("model-a", "")
    fields: dict[str, Any] = {
        "kind": Kind.BLOCK,
        "fingerprint": "model-a",
        "owner": "",
        "key": block_key(parent, tokens),
        "parent": parent,
        "start": 0,
        "tokens": token_bytes(tokens),
    }
    return Identity(**fields | changes)
