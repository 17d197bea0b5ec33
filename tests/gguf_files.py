"""GGUFs byte by byte, for what no honest program writes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

TEXT, ARRAY, U32, F32, BOOL, U64 = 8, 9, 4, 6, 7, 10
LLAMA: Mapping[str, object] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 7,
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}
TENSORS = (("token_embd.weight", (64, 32), 0),)


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(given: object) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, bool):
        return struct.pack("<I?", BOOL, given)
    if isinstance(given, int):
        return struct.pack("<II", U32, given)
    if isinstance(given, float):
        return struct.pack("<If", F32, given)
    if isinstance(given, str):
        return struct.pack("<I", TEXT) + text(given)
    assert isinstance(given, tuple)
    inner = [value(each) for each in given]
    kind = inner[0][:4] if inner else struct.pack("<I", U32)
    return (
        struct.pack("<I", ARRAY)
        + kind
        + struct.pack("<Q", len(inner))
        + b"".join(each[4:] for each in inner)
    )


def gguf(
    keys: Mapping[str, object] = LLAMA,
    tensors: Sequence[tuple[str, tuple[int, ...], int]] = TENSORS,
    *,
    data: bool = True,
) -> bytes:
    """Tensors of single precision only. `data`: with the weights, which are zeros."""
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, given in keys.items():
        raw += text(key) + value(given)
    offset = 0
    for name, shape, kind in tensors:
        raw += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        raw += struct.pack("<IQ", kind, offset)
        size = 4
        for length in shape:
            size *= length
        offset += size
    return raw + b"\0" * (-len(raw) % 32) + b"\0" * (offset if data else 0)


def write(path: Path, **changes: object) -> Path:
    """A small whole model; `changes` to its keys, `.` written as `__`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = {**LLAMA, **{key.replace("__", "."): given for key, given in changes.items()}}
    path.write_bytes(gguf(keys))
    return path
