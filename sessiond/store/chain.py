"""Names of stored state: a hash chain over the tokens of a line.

A key says everything that must be equal for the state to be the same: fingerprint, owner, and every
token before. So equal keys mean equal state, and a foreign fingerprint or owner finds nothing.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256

import numpy as np

from sessiond.engine.memory import Tokens

BLOCK_TOKENS = 256


class Kind(StrEnum):
    """`whole` is a snapshot that holds all of the state, not only what cannot be truncated."""

    BLOCK = "block"
    SNAPSHOT = "snapshot"
    WHOLE = "whole"


def root_key(fingerprint: str, owner: str) -> str:
    """Key at position 0."""
    return _digest("root", fingerprint.encode(), owner.encode())


def block_key(parent: str, tokens: Tokens) -> str:
    """Key of a block of 1 to 256 tokens after `parent`; of a full one it is the next chain key."""
    return _digest(Kind.BLOCK, parent.encode(), token_bytes(tokens))


def snapshot_key(kind: Kind, parent: str, rest: Tokens) -> str:
    """Key of a snapshot `rest` tokens (0 to 255) after the chain key `parent`."""
    return _digest(kind, parent.encode(), token_bytes(rest))


def state_key(kind: Kind, parent: str, tokens: Tokens) -> str:
    """Key of a state of any kind from what its header says."""
    if kind is Kind.BLOCK:
        return block_key(parent, tokens)
    return snapshot_key(kind, parent, tokens)


def chain_keys(root: str, tokens: Tokens) -> list[str]:
    """Keys at positions 0, 256, 512, … up to the last full block of `tokens`."""
    keys = [root]
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        keys.append(block_key(keys[-1], tokens[end - BLOCK_TOKENS : end]))
    return keys


def block_start(position: int) -> int:
    """Start of the block in which `position` lies."""
    return position - position % BLOCK_TOKENS


def token_bytes(tokens: Tokens) -> bytes:
    """Little-endian int32, four bytes a token."""
    return np.ascontiguousarray(tokens, dtype="<i4").tobytes()


def tokens_of(raw: bytes) -> Tokens:
    return np.frombuffer(raw, dtype="<i4").astype(np.int32, copy=False)


def _digest(domain: str, *fields: bytes) -> str:
    digest = sha256()
    for field in (f"sessiond/1/{domain}".encode(), *fields):
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.hexdigest()
