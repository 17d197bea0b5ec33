"""State files as a disk, a bug or a stranger may have changed them: seeded, one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from sessiond.store.envelope import Identity

PREFIX = 32
PAGE = 4096


@dataclass(frozen=True)
class Sample:
    """A sound file: what it is the state of, and its bytes. `others` are sound files of others."""

    identity: Identity
    file: bytes
    others: Sequence[bytes]

    @property
    def offset(self) -> int:
        return offset_of(self.file)

    @property
    def payload(self) -> bytes:
        return self.file[self.offset :]


@dataclass(frozen=True)
class Mutant:
    """`at` is the byte of the header that is flipped, -1 where it is something else."""

    kind: str
    target: int
    file: bytes
    at: int = -1


def offset_of(file: bytes) -> int:
    """Where the payload begins."""
    return PREFIX + int.from_bytes(file[12:16], "little")


def header_of(file: bytes) -> dict[str, Any]:
    header: dict[str, Any] = orjson.loads(file[PREFIX : offset_of(file)])
    return header


def resealed(file: bytes, **changes: Any) -> bytes:
    """With another header whose checksum is right: not a flipped bit but somebody else's file."""
    raw = orjson.dumps(header_of(file) | changes, option=orjson.OPT_SORT_KEYS)
    start = file[:12] + len(raw).to_bytes(4, "little")
    return start + xxhash.xxh3_128_digest(start + raw) + raw + file[offset_of(file) :]


def flipped(file: bytes, at: int, mask: int) -> bytes:
    changed = bytearray(file)
    changed[at] ^= mask
    return bytes(changed)


def _bit(chance: random.Random) -> int:
    return 1 << chance.randrange(8)


def _payload_byte(sample: Sample, chance: random.Random) -> bytes:
    at = chance.randrange(sample.offset, len(sample.file))
    return flipped(sample.file, at, _bit(chance))


def _length_bit(sample: Sample, chance: random.Random) -> bytes:
    return flipped(sample.file, chance.randrange(8, 16), _bit(chance))


def _told_length(sample: Sample, chance: random.Random) -> bytes:
    told = len(sample.payload) + chance.choice([-1, 1, 255, -256, 1 << 31, 1 << 62])
    return resealed(sample.file, bytes=told)


def _truncated(sample: Sample, chance: random.Random) -> bytes:
    edges = (0, 8, 16, PREFIX, sample.offset - 1, sample.offset, len(sample.file) - 1)
    anywhere = chance.randrange(len(sample.file))
    return sample.file[: chance.choice([*edges, anywhere, anywhere, anywhere])]


def _extended(sample: Sample, chance: random.Random) -> bytes:
    return sample.file + chance.choice([b"\0", chance.randbytes(chance.randrange(1, 9000))])


def _torn_page(sample: Sample, chance: random.Random) -> bytes:
    """As after a power cut: a part that never reached the disk reads as zeros."""
    start = chance.randrange(0, len(sample.file) // 512) * 512
    length = chance.choice([512, PAGE, len(sample.file)])
    hole = min(length, len(sample.file) - start)
    return sample.file[:start] + bytes(hole) + sample.file[start + hole :]


def _noise(sample: Sample, chance: random.Random) -> bytes:
    start = chance.randrange(len(sample.file))
    noise = chance.randbytes(min(chance.randrange(1, 600), len(sample.file) - start))
    return sample.file[:start] + noise + sample.file[start + len(noise) :]


def _junk(sample: Sample, chance: random.Random) -> bytes:
    return chance.choice([b"", sample.file[:8], sample.file[:PREFIX]]) + chance.randbytes(2000)


def _swapped(sample: Sample, chance: random.Random) -> bytes:
    return chance.choice(sample.others)


def _spliced(sample: Sample, chance: random.Random) -> bytes:
    """The header of one, the payload of another."""
    other = chance.choice(sample.others)
    return sample.file[: sample.offset] + other[offset_of(other) :]


def _other_fingerprint(sample: Sample, chance: random.Random) -> bytes:
    return resealed(sample.file, fingerprint=f"model-{chance.randrange(1 << 30)}")


def _other_owner(sample: Sample, chance: random.Random) -> bytes:
    return resealed(sample.file, owner=f"owner-{chance.randrange(1 << 30)}")


def _other_token(sample: Sample, chance: random.Random) -> bytes:
    tokens = list(header_of(sample.file)["tokens"])
    if not tokens:
        return resealed(sample.file, tokens=[7], position=header_of(sample.file)["start"] + 1)
    tokens[chance.randrange(len(tokens))] ^= 1 + chance.randrange(1 << 15)
    return resealed(sample.file, tokens=tokens)


def _other_field(sample: Sample, chance: random.Random) -> bytes:
    header = header_of(sample.file)
    field = chance.choice(sorted(header.keys() - {"created", "fingerprint", "owner", "tokens"}))
    values = [-1, 0, 1 << 40, 1.5, True, None, "", "f" * 64, [], {}]
    values += ["block", "snapshot", "whole"] if field == "kind" else [256, 512]
    wrong = [v for v in values if type(v) is not type(header[field]) or v != header[field]]
    return resealed(sample.file, **{field: chance.choice(wrong)})


def _half_a_header(sample: Sample, chance: random.Random) -> bytes:
    """A right checksum over bytes that are no JSON object."""
    raw = chance.choice([b"", b"{}", b"[]", b"\xff\xfe", b'{"kind":', b"[" * 3000, b"null"])
    start = sample.file[:12] + len(raw).to_bytes(4, "little")
    return start + xxhash.xxh3_128_digest(start + raw) + raw + sample.payload


KINDS: dict[str, Callable[[Sample, random.Random], bytes]] = {
    "payload byte": _payload_byte,
    "bit of a length": _length_bit,
    "another length in the header": _told_length,
    "truncated": _truncated,
    "extended": _extended,
    "torn page": _torn_page,
    "noise": _noise,
    "junk": _junk,
    "file of another state": _swapped,
    "payload of another state": _spliced,
    "other fingerprint": _other_fingerprint,
    "other owner": _other_owner,
    "other tokens": _other_token,
    "other field": _other_field,
    "no header": _half_a_header,
}
HEADER_BYTE = "header byte"


def mutants(samples: Sequence[Sample], count: int, seed: int = 7) -> Iterator[Mutant]:
    """`count` of them, in rounds with one of each sample.

    Every other round flips a bit of the next byte of the header, each sample beginning elsewhere,
    so that enough rounds go through all of it; the rest takes the kinds in turn.
    """
    chance = random.Random(seed)
    kinds = list(KINDS)
    for number in range(count):
        turn, target = divmod(number, len(samples))
        sample = samples[target]
        if turn % 2 == 0:
            at = (turn // 2 + target * sample.offset // len(samples)) % sample.offset
            yield Mutant(HEADER_BYTE, target, flipped(sample.file, at, _bit(chance)), at)
        else:
            kind = kinds[(turn // 2 + target) % len(kinds)]
            yield Mutant(kind, target, _different(KINDS[kind], sample, chance))


def _different(
    mutate: Callable[[Sample, random.Random], bytes], sample: Sample, chance: random.Random
) -> bytes:
    while (file := mutate(sample, chance)) == sample.file:
        pass
    return file
