"""The file format of a block or snapshot. Nobody sees a payload before all of it is verified.

| offset | size | field                                                                  |
|--------|------|------------------------------------------------------------------------|
| 0      | 8    | magic `SESSIOND`                                                       |
| 8      | 4    | format version, u32 little-endian                                      |
| 12     | 4    | H, length of the header in bytes, u32 little-endian                    |
| 16     | 16   | xxh3-128, big-endian, of bytes 0-15 and the header                     |
| 32     | H    | header: JSON, UTF-8, keys sorted, no white space                       |
| 32 + H | N    | payload, up to the end of the file                                     |

The first 32 bytes keep their meaning in every version: a newer file can be told from a damaged one.

| header field  | unit                                                                            |
|---------------|---------------------------------------------------------------------------------|
| `kind`        | `block`, `snapshot` or `whole`                                                  |
| `fingerprint` | of model, library and settings; text                                            |
| `owner`       | text, may be empty                                                              |
| `key`         | SHA-256, 64 hexadecimal digits, see `chain`                                     |
| `parent`      | chain key at `start`                                                            |
| `start`       | position, a multiple of 256 tokens                                              |
| `position`    | end of the block, or where the snapshot was taken: `start` + len(`tokens`)      |
| `tokens`      | token ids from `start` to `position`: 1-256 of a block, 0-255 of a snapshot     |
| `bytes`       | N, length of the payload                                                        |
| `digest`      | xxh3-128 of the payload, 32 hexadecimal digits                                  |
| `created`     | nanoseconds since 1970                                                          |
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields

import numpy as np
import orjson
import xxhash

from sessiond.errors import StateDamaged, StateForeign, StateNewer
from sessiond.store.chain import Kind, state_key, token_bytes, tokens_of

MAGIC = b"SESSIOND"
VERSION = 1
HEADER_MAX = 64 * 1024
"""No header is longer, in bytes; reading this much from a file is enough to know what it is."""

Buffer = bytes | bytearray | memoryview

_PREFIX = struct.Struct("<8sII16s")
_SUMMED = 16
_FIELDS = {
    "kind": str,
    "fingerprint": str,
    "owner": str,
    "key": str,
    "parent": str,
    "start": int,
    "position": int,
    "tokens": list,
    "bytes": int,
    "digest": str,
    "created": int,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state is the state of. `tokens` from `start` to `position`, as little-endian int32."""

    kind: Kind
    fingerprint: str
    owner: str
    key: str
    parent: str
    start: int
    tokens: bytes

    @property
    def position(self) -> int:
        return self.start + len(self.tokens) // 4

    @property
    def genuine(self) -> bool:
        """Whether the key follows from the rest."""
        return self.key == state_key(self.kind, self.parent, tokens_of(self.tokens))


@dataclass(frozen=True, slots=True)
class Header:
    """The payload starts at `offset`, is `payload_bytes` long; `created` in ns since 1970."""

    identity: Identity
    offset: int
    payload_bytes: int
    digest: str
    created: int

    @property
    def file_bytes(self) -> int:
        return self.offset + self.payload_bytes


def seal(identity: Identity, payload: Buffer, *, created: int) -> bytes:
    """The bytes that stand before the payload in its file. ValueError when they are too many."""
    header = orjson.dumps(
        {
            "kind": str(identity.kind),
            "fingerprint": identity.fingerprint,
            "owner": identity.owner,
            "key": identity.key,
            "parent": identity.parent,
            "start": identity.start,
            "position": identity.position,
            "tokens": tokens_of(identity.tokens).tolist(),
            "bytes": memoryview(payload).nbytes,
            "digest": xxhash.xxh3_128_hexdigest(payload),
            "created": created,
        },
        option=orjson.OPT_SORT_KEYS,
    )
    if _PREFIX.size + len(header) > HEADER_MAX:
        raise ValueError(f"header of {len(header)} bytes: shorten the fingerprint or the owner")
    summed = _PREFIX.pack(MAGIC, VERSION, len(header), b"")[:_SUMMED]
    return summed + xxhash.xxh3_128_digest(summed + header) + header


def read_header(buffer: Buffer, *, key: str = "") -> Header:
    """Header of a file from its first `HEADER_MAX` bytes or more.

    Raises StateDamaged or StateNewer, with `key` as the name of the state."""
    view = memoryview(buffer)
    if len(view) < _PREFIX.size:
        raise StateDamaged(f"only {len(view)} bytes are left of the file.", key=key)
    magic, version, length, digest = _PREFIX.unpack(view[: _PREFIX.size])
    offset = _PREFIX.size + length
    if magic != MAGIC:
        raise StateDamaged("not a state file.", key=key)
    if offset > min(len(view), HEADER_MAX) or digest != _header_digest(view, offset):
        raise StateDamaged("the header's checksum is wrong.", key=key)
    if version != VERSION:
        raise StateNewer(f"file format {version}; this sessiond reads {VERSION}.", key=key)
    return _parsed(bytes(view[_PREFIX.size : offset]), offset, key)


def open_envelope(buffer: Buffer, expect: Identity) -> memoryview:
    """The payload, a slice of `buffer`, once everything about it is as expected.

    Raises StateDamaged (torn, flipped, wrong length), StateForeign (sound, but the state of
    something else) or StateNewer."""
    view = memoryview(buffer)
    header = read_header(view, key=expect.key)
    for field in fields(Identity):
        if getattr(header.identity, field.name) != getattr(expect, field.name):
            raise StateForeign(f"another {field.name} than expected.", key=expect.key)
    if len(view) != header.file_bytes:
        raise StateDamaged(f"{len(view)} bytes, not {header.file_bytes}.", key=expect.key)
    payload = view[header.offset :]
    if xxhash.xxh3_128_hexdigest(payload) != header.digest:
        raise StateDamaged("the payload's checksum is wrong.", key=expect.key)
    return payload


def _header_digest(view: memoryview, offset: int) -> bytes:
    return xxhash.xxh3_128_digest(bytes(view[:_SUMMED]) + bytes(view[_PREFIX.size : offset]))


def _parsed(raw: bytes, offset: int, key: str) -> Header:
    try:
        data = orjson.loads(raw)
        wrong = [name for name, kind in _FIELDS.items() if type(data[name]) is not kind]
        tokens = token_bytes(np.asarray(data["tokens"], dtype=np.int32))
        identity = Identity(
            kind=Kind(data["kind"]),
            fingerprint=data["fingerprint"],
            owner=data["owner"],
            key=data["key"],
            parent=data["parent"],
            start=data["start"],
            tokens=tokens,
        )
        if wrong or data["position"] != identity.position:
            raise ValueError(*wrong or ["position"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateDamaged(f"the header cannot be read ({error}).", key=key) from error
    return Header(identity, offset, data["bytes"], data["digest"], data["created"])
