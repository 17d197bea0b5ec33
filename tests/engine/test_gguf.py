"""A GGUF's header is read from files that nobody vouches for."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.gguf import KEPT_ARRAY, KEPT_ENTRIES, BrokenGguf, read_header
from sessiond.engine.gguf_model import model_of
from sessiond.engine.memory import MemoryKind
from tests.gguf_files import LLAMA, TENSORS, gguf, text, value

HEAD = b"GGUF" + struct.pack("<I", 3)


def described(keys: dict[str, object], tmp_path: Path):  # type: ignore[no-untyped-def]
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(keys))
    return model_of([read_header(file)])


def test_what_it_says_of_real_models_is_what_llama_cpp_says(model_path: Path) -> None:
    from sessiond.engine.llama import LlamaModel, start_backend
    from sessiond.engine.settings import ContextSettings

    start_backend()
    loaded = LlamaModel(ContextSettings(model=model_path, n_ctx=64, n_seq_max=1))
    info = loaded.info
    loaded.close()
    told = model_of([read_header(model_path)])
    assert told.kind is info.memory.kind
    assert told.architecture == info.architecture
    assert told.window == info.memory.n_swa
    assert told.n_ctx_train == info.n_ctx_train
    assert told.parameters == info.n_params
    assert (told.template or None) == info.chat_template


def test_bytes_of_cells_and_states(models: Callable[[str], Path]) -> None:
    """As the codec measures them: tests/engine/test_probe.py."""
    smol = model_of([read_header(models("attention"))])
    assert smol.token_bytes() == 30 * 3 * 64 * 2 * 2
    assert smol.token_bytes("q8_0", "q8_0") == 30 * 3 * 64 * 2 * 34 / 32
    assert (smol.quant, smol.line_bytes()) == ("Q4_1", 0)
    gemma = model_of([read_header(models("swa"))])
    assert gemma.token_bytes() == 3 * 256 * 2 * 2
    assert gemma.line_bytes() == (512 + 512) * 15 * 256 * 2 * 2
    hybrid = model_of([read_header(models("hybrid"))])
    assert hybrid.token_bytes() == 1 * 64 * 2 * 2
    assert hybrid.state == 3 * 4 * (3 * (256 + 2 * 4 * 32) + 256 * 32)
    mamba = model_of([read_header(models("recurrent"))])
    assert mamba.token_bytes() == 0
    assert mamba.context_bytes(10) == mamba.context_bytes(10_000) == mamba.state > 0


@pytest.mark.parametrize(
    ("architecture", "keys", "kind", "attending"),
    [
        ("llama", {}, "attention", 4),
        ("phi3", {"attention.sliding_window": 512}, "attention", 4),
        ("gpt-oss", {"attention.sliding_window": 128}, "swa", 2),
        (
            "gemma4",
            {
                "attention.sliding_window": 512,
                "attention.sliding_window_pattern": (True, True, True, False),
            },
            "swa",
            1,
        ),
        (
            "mamba",
            {"ssm.inner_size": 64, "ssm.state_size": 4, "ssm.conv_kernel": 4},
            "recurrent",
            0,
        ),
        ("rwkv7", {"wkv.head_size": 64}, "recurrent", 0),
        ("qwen3next", {"ssm.inner_size": 64, "ssm.state_size": 4}, "hybrid", 1),
        ("falcon-h1", {"ssm.inner_size": 64, "ssm.state_size": 4}, "hybrid", 4),
        (
            "jamba",
            {"ssm.inner_size": 64, "ssm.state_size": 4, "attention.head_count_kv": (0, 2, 0, 0)},
            "hybrid",
            1,
        ),
        ("lfm2", {"shortconv.l_cache": 3, "attention.head_count_kv": (0, 0, 2, 2)}, "hybrid", 2),
    ],
)
def test_memory_kinds(
    architecture: str, keys: dict[str, object], kind: str, attending: int, tmp_path: Path
) -> None:
    shape = {"block_count": 4, "context_length": 64, "embedding_length": 64}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2}
    own = {f"{architecture}.{key}": given for key, given in {**shape, **heads, **keys}.items()}
    model = described({"general.architecture": architecture, **own}, tmp_path)
    assert model.kind is MemoryKind(kind)
    assert model.cells.keys == attending * 2 * 16


def test_long_arrays_are_passed_over_and_what_follows_is_read(tmp_path: Path) -> None:
    words = tuple(f"word {n}" * (n % 40) for n in range(KEPT_ARRAY + 1))
    scores = tuple(float(n) for n in range(KEPT_ARRAY + 1))
    keys = {"tokens": words, "scores": scores, "short": ("a", "b"), **LLAMA}
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(keys))
    header = read_header(file)
    assert header.values["short"] == ("a", "b")
    assert not {"tokens", "scores"} & header.values.keys()
    assert header.values["general.name"] == "Tiny"
    assert [tensor.name for tensor in header.tensors] == [TENSORS[0][0]]


def test_many_short_arrays_are_not_all_kept(tmp_path: Path) -> None:
    """1. A header of 4 MiB of arrays that are short enough each. Result: little memory, and what
    comes behind them is read.
    """
    many = array(2, KEPT_ARRAY) + bytes(2 * KEPT_ARRAY)
    keys = {f"k{n}": many for n in range(512)}
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf({"first": (1, 2, 3), **keys, **LLAMA}))
    tracemalloc.start()
    header = read_header(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = [value for value in header.values.values() if isinstance(value, tuple)]
    assert (kept[0], kept[1]) == ((1, 2, 3), (0,) * KEPT_ARRAY)
    assert KEPT_ENTRIES - KEPT_ARRAY < sum(map(len, kept)) <= KEPT_ENTRIES
    assert header.values["general.name"] == "Tiny"
    assert peak < 8 << 20


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_without_waiting(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with pytest.raises(BrokenGguf, match="no regular file"):
        read_header(file)


def array(kind: int, length: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, length)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cut off"),
        (b"GGUF", "cut off"),
        (b"PK\3\4" + bytes(60), "does not begin"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "version 50331648"),
        (HEAD + struct.pack("<QQ", 2**63, 0), "tensors"),
        (HEAD + struct.pack("<QQ", 0, 2**64 - 1), "keys"),
        (HEAD + struct.pack("<QQ", 0, 3) + bytes(8), "cut off"),
        (HEAD + struct.pack("<QQQ", 0, 1, 2**62), "bytes in a text"),
        (HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<I", 99), "unknown type 99"),
        (HEAD + struct.pack("<QQ", 0, 1) + text("k") + array(4, 2**60), "entries in an array"),
        (HEAD + struct.pack("<QQ", 0, 1) + text("k") + array(9, 1) + array(9, 1), "arrays in"),
        (HEAD + struct.pack("<QQ", 0, 1) + text("k") + array(8, 1 << 23), "cut off"),
        (HEAD + struct.pack("<QQ", 0, 1) + text("k") + array(10, 1 << 23), "cut off"),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text("k") + array(8, 8192) + struct.pack("<Q", 2**63),
            "bytes in a text",
        ),
        (HEAD + struct.pack("<QQ", 0, 2) + 2 * (text("k") + value(1)), "twice"),
        (HEAD + struct.pack("<QQQ", 0, 1, 1) + b"\xff" + value(1), "cannot be read"),
        (HEAD + struct.pack("<QQ", 1, 0) + text("t") + struct.pack("<I", 2**31), "dimensions"),
        (gguf({"general.alignment": 0}), "alignment"),
        (gguf({"general.alignment": "x"}), "alignment"),
    ],
)
def test_hostile_files_are_refused_with_little_memory(
    content: bytes, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(BrokenGguf, match=why):
        read_header(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"general.architecture": 7}, "architecture"),
        ({"general.architecture": "clip"}, "no text"),
        ({"general.architecture": "nomic-bert"}, "no text"),
        ({"general.type": "mmproj"}, "no language model"),
        ({"llama.block_count": "many"}, "layers"),
    ],
)
def test_what_is_no_language_model_is_said(
    change: dict[str, object], why: str, tmp_path: Path
) -> None:
    with pytest.raises(BrokenGguf, match=why):
        described({**LLAMA, **change}, tmp_path)


def test_a_download_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    whole = gguf()
    file = tmp_path / "m.gguf"
    file.write_bytes(whole[:-100])
    with pytest.raises(BrokenGguf, match="100 bytes are missing"):
        model_of([read_header(file)])


@given(st.integers(0, len(gguf(data=False)) - 1), st.binary(min_size=1, max_size=9))
def test_any_damage_is_read_or_refused_and_nothing_else(at: int, damage: bytes) -> None:
    import tempfile

    raw = gguf(data=False)
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(raw[:at] + damage + raw[at + len(damage) :])
        file.flush()
        try:
            model_of([read_header(Path(file.name))])
        except BrokenGguf as refusal:
            assert refusal.message
