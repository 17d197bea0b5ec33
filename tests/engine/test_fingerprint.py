"""A saved state is used again only where it means the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessiond.engine.fake import FakeModel
from sessiond.engine.fingerprint import DigestCache, Fingerprint, file_digest, fingerprint
from sessiond.engine.settings import ContextSettings

SETTINGS = ContextSettings(Path("a.gguf"), n_ctx=4096, n_seq_max=8)
INFO = replace(FakeModel().info, n_ctx_orig=8192)


def of(
    digest: Callable[[Path], str] = str, libraries: tuple[str, ...] = ("llama.so",), **changes: Any
) -> Fingerprint:
    paths = [Path(name) for name in libraries]
    return fingerprint(replace(SETTINGS, **changes), INFO, paths, digest)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_ctx": 8192},
        {"n_seq_max": 12},
        {"n_batch": 64},
        {"n_ubatch": 64},
        {"threads": 7},
        {"n_gpu_layers": 3},
        {"extra": {"main_gpu": 1, "tensor_split": [1, 2], "n_threads_batch": 3}},
    ],
)
def test_what_state_moves_between_does_not_change_it(changes: dict[str, Any]) -> None:
    assert of(**changes) == of()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model": Path("b.gguf")}, "model"),
        ({"libraries": ("llama2.so",)}, "library"),
        ({"libraries": ("llama.so", "ggml.so")}, "library"),
        ({"type_k": "q8_0"}, "settings"),
        ({"type_v": "q8_0"}, "settings"),
        ({"flash_attn": False}, "settings"),
        ({"n_ctx": 8193}, "settings"),
        ({"extra": {"rope_freq_base": 1e6}}, "settings"),
    ],
)
def test_what_a_state_depends_on_changes_its_part_and_the_whole(
    changes: dict[str, Any], part: str
) -> None:
    before, after = of(), of(**changes)
    assert after.value != before.value
    changed = {
        name
        for name in ("model", "library", "settings")
        if getattr(before, name) != getattr(after, name)
    }
    assert changed == {part}


def test_the_content_of_a_file_counts_not_only_its_name() -> None:
    assert of(lambda path: "1").model != of(lambda path: "2").model
    assert of(lambda path: "1").library != of(lambda path: "2").library


def test_key_and_value_types_are_not_mixed_up() -> None:
    assert of(type_k="q8_0").settings != of(type_v="q8_0").settings


# --- digests of files


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were really read."""
    read: list[Path] = []

    def digest(path: Path) -> str:
        read.append(path)
        return file_digest(path)

    monkeypatch.setattr("sessiond.engine.fingerprint.file_digest", digest)
    return read


def test_a_file_is_read_once(tmp_path: Path, counted: list[Path]) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    first = DigestCache(tmp_path / "digests.json")(model)
    assert first == DigestCache(tmp_path / "digests.json")(model) == file_digest(model)
    assert counted == [model]


@pytest.mark.parametrize("how", ["longer", "same size", "same size and time", "other file"])
def test_changed_content_is_noticed(tmp_path: Path, how: str) -> None:
    model, cache = tmp_path / "m.gguf", DigestCache(tmp_path / "digests.json")
    model.write_bytes(b"weights")
    before, stat = cache(model), model.stat()
    if how == "other file":
        (tmp_path / "new").write_bytes(b"WEIGHTS")
        (tmp_path / "new").replace(model)
    else:
        model.write_bytes(b"more weights" if how == "longer" else b"WEIGHTS")
    if how == "same size and time":
        os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache(model) != before
    assert cache(model) == file_digest(model)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": 1}'])
def test_a_broken_cache_file_is_replaced(
    tmp_path: Path, counted: list[Path], content: bytes
) -> None:
    model, file = tmp_path / "m.gguf", tmp_path / "digests.json"
    model.write_bytes(b"weights")
    file.write_bytes(content)
    assert DigestCache(file)(model) == file_digest(model)
    assert file_digest(model) in json.loads(file.read_text()).values()
    DigestCache(file)(model)
    assert counted == [model]


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, counted: list[Path]
) -> None:
    model, cache = tmp_path / "m.gguf", DigestCache(tmp_path / "missing" / "digests.json")
    model.write_bytes(b"weights")
    assert cache(model) == cache(model)
    assert counted == [model, model]


def test_only_the_last_files_are_remembered(tmp_path: Path) -> None:
    cache = DigestCache(tmp_path / "digests.json")
    for number in range(70):
        file = tmp_path / f"{number}.gguf"
        file.write_bytes(bytes([number]))
        cache(file)
    assert len(json.loads((tmp_path / "digests.json").read_text())) == 64
