from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.memory import as_tokens
from sessiond.errors import StateDamaged, StateError, StateForeign, StateNewer
from sessiond.store.chain import Kind, token_bytes
from sessiond.store.envelope import HEADER_MAX, Identity, open_envelope, read_header, seal
from tests.store.samples import block_identity, line

GOLDEN = Path(__file__).parent / "golden" / "format-1.block"


def sealed(identity: Identity, payload: bytes) -> bytes:
    return seal(identity, payload, created=1_700_000_000_000_000_000) + payload


identities = st.builds(
    Identity,
    kind=st.sampled_from(Kind),
    fingerprint=st.text(max_size=80),
    owner=st.text(max_size=40),
    key=st.text("0123456789abcdef", min_size=64, max_size=64),
    parent=st.text("0123456789abcdef", min_size=64, max_size=64),
    start=st.integers(0, 4000).map(lambda block: block * 256),
    tokens=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=256).map(
        lambda values: token_bytes(as_tokens(values))
    ),
)


@given(identities, st.binary(max_size=2000))
def test_what_was_sealed_is_what_is_opened(identity: Identity, payload: bytes) -> None:
    file = sealed(identity, payload)
    assert open_envelope(file, identity) == payload
    assert read_header(file[:HEADER_MAX]).identity == identity
    assert read_header(file).file_bytes == len(file)


FILE = sealed(block_identity(tokens=line(40)), b"payload " * 20)


def test_a_flipped_byte_is_refused_wherever_it_is() -> None:
    for at, flip in product(range(len(FILE)), (0x01, 0x80, 0xFF)):
        broken = bytearray(FILE)
        broken[at] ^= flip
        with pytest.raises(StateDamaged):
            open_envelope(broken, block_identity(tokens=line(40)))


@given(st.integers(0, len(FILE) - 1))
def test_a_truncated_file_is_refused(length: int) -> None:
    with pytest.raises(StateDamaged):
        open_envelope(FILE[:length], block_identity(tokens=line(40)))


@given(st.binary(min_size=1, max_size=300))
def test_trailing_bytes_are_refused(rest: bytes) -> None:
    with pytest.raises(StateDamaged):
        open_envelope(FILE + rest, block_identity(tokens=line(40)))


@given(st.binary(max_size=600))
def test_no_other_bytes_are_a_state(junk: bytes) -> None:
    for file in (junk, b"SESSIOND" + junk, FILE[:32] + junk):
        with pytest.raises(StateDamaged):
            open_envelope(file, block_identity(tokens=line(40)))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": Kind.SNAPSHOT},
        {"fingerprint": "model-b"},
        {"owner": "somebody"},
        {"key": "0" * 64},
        {"parent": "0" * 64},
        {"start": 256},
        {"tokens": token_bytes(line(40, seed=1))},
        {"tokens": token_bytes(line(39))},
    ],
    ids=str,
)
def test_the_state_of_something_else_is_foreign(change: dict[str, Any]) -> None:
    expected = block_identity(tokens=line(40))
    with pytest.raises(StateForeign) as caught:
        open_envelope(FILE, replace(expected, **change))
    assert next(iter(change)) in caught.value.message


def resealed(version: int = 1, **changes: Any) -> bytes:
    """The sample with a changed header whose checksum is right."""
    length = int.from_bytes(FILE[12:16], "little")
    header = orjson.loads(FILE[32 : 32 + length]) | changes
    raw = orjson.dumps({k: v for k, v in header.items() if v is not None})
    start = b"SESSIOND" + version.to_bytes(4, "little") + len(raw).to_bytes(4, "little")
    return start + xxhash.xxh3_128_digest(start + raw) + raw + FILE[32 + length :]


def test_a_newer_format_is_told_from_damage() -> None:
    newer = resealed(version=2)
    with pytest.raises(StateNewer):
        open_envelope(newer, block_identity(tokens=line(40)))
    with pytest.raises(StateDamaged):
        open_envelope(newer[:40] + b"?" + newer[41:], block_identity(tokens=line(40)))


FIELDS = orjson.loads(FILE[32 : 32 + int.from_bytes(FILE[12:16], "little")])


@pytest.mark.parametrize("field", list(FIELDS))
@pytest.mark.parametrize("value", [None, "x", -1.5, [1, 2], {}], ids=str)
def test_a_header_with_a_wrong_field_is_refused(field: str, value: Any) -> None:
    with pytest.raises(StateError):
        open_envelope(resealed(**{field: value}), block_identity(tokens=line(40)))


def test_a_header_too_long_to_be_read_at_once_is_never_written() -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        seal(block_identity(fingerprint="x" * HEADER_MAX), b"", created=0)


def test_files_of_format_1_can_be_read() -> None:
    payload = open_envelope(GOLDEN.read_bytes(), block_identity(tokens=line(40)))
    assert bytes(payload) == b"golden payload of format 1"
