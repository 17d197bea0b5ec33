from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sessiond.cli import found_models
from sessiond.cli.found_models import Found, FoundModel, PassedOver, find_models
from sessiond.cli.machine import fit, gpu_memory
from sessiond.cli.model_places import Place, given, places
from sessiond.engine.gguf import read_header
from sessiond.engine.gguf_model import model_of
from tests.cli.conftest import Cli
from tests.gguf_files import gguf, write


def found_in(*directories: Path) -> list[Found]:
    return list(find_models(given(directories)))


def names(found: list[Found]) -> list[str]:
    return [each.name for each in found if isinstance(each, FoundModel)]


def test_the_caches_of_other_tools_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = {
        ".lmstudio/models": "LM Studio",
        ".cache/lm-studio/models": "LM Studio",
        ".cache/llama.cpp": "llama.cpp",
        ".cache/huggingface/hub": "Hugging Face",
        ".ollama/models": "Ollama",
        ".local/share/nomic.ai/GPT4All": "GPT4All",
        ".cache/gpt4all": "GPT4All",
        ".local/share/Jan/data/llamacpp/models": "Jan",
        "jan/models": "Jan",
        "mine": "model.path",
    }
    for directory in usual:
        (tmp_path / directory).mkdir(parents=True)
    found = places(str(tmp_path / "mine/m.gguf"), {"HOME": str(tmp_path)})
    labels = {
        str(p.directory.relative_to(tmp_path)): p.label for p in found if p.label != "sessiond"
    }
    assert labels == usual
    elsewhere = {"HOME": "/none", "LLAMA_CACHE": str(tmp_path / "jan"), "HF_HOME": str(tmp_path)}
    (tmp_path / "hub").mkdir()
    moved = places("", {**elsewhere, "OLLAMA_MODELS": str(tmp_path / "mine")})
    assert [p.label for p in moved if p.label != "sessiond"] == [
        "llama.cpp",
        "Hugging Face",
        "Ollama",
    ]


def test_the_layout_of_hugging_face_is_links_to_blobs(tmp_path: Path) -> None:
    blob = write(tmp_path / "models--a--b/blobs/0123abcd")
    for snapshot in ("one", "two"):
        link = tmp_path / f"models--a--b/snapshots/{snapshot}/Tiny-Q8_0.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nothing")
    (model,) = found_in(tmp_path)
    assert isinstance(model, FoundModel)
    assert (model.name, model.path.parent.name) == ("Tiny-Q8_0", "one")


def test_ollama_has_manifests_that_name_blobs(tmp_path: Path) -> None:
    digest = "a" * 64
    write(tmp_path / f"blobs/sha256-{digest}")
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "b" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    hostile = "sha256:../../../etc/passwd"
    manifests = tmp_path / "manifests/registry.ollama.ai"
    for name, content in {
        "library/tiny/latest": json.dumps({"layers": layers}),
        "me/other/q8": json.dumps({"layers": [layers[1] | {"digest": hostile}]}),
        "library/broken/latest": "{",
        "library/deep/latest": "[" * 100_000,
        "library/list/latest": "[]",
    }.items():
        (manifests / name).parent.mkdir(parents=True, exist_ok=True)
        (manifests / name).write_text(content)
    (model,) = found_in(tmp_path)
    assert isinstance(model, FoundModel)
    assert model.name == "tiny:latest"
    assert model.path == tmp_path / f"blobs/sha256-{digest}"


def test_pipes_and_devices_are_passed_over_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "zeros.gguf").symlink_to("/dev/zero")
    manifests = tmp_path / "ollama/manifests/registry/library/tiny"
    manifests.mkdir(parents=True)
    os.mkfifo(manifests / "pipe")
    (manifests / "zeros").symlink_to("/dev/zero")
    found = list(
        find_models(
            [*given([tmp_path]), Place("Ollama", tmp_path / "ollama", manifests=True)],
        )
    )
    assert {each.why for each in found if isinstance(each, PassedOver)} == {"it is no regular file"}
    assert len(found) == 2


def test_split_files_are_one_model(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        write(tmp_path / f"Big-0000{part}-of-00003.gguf")
    write(tmp_path / "Half-00001-of-00002.gguf")
    (tmp_path / "Half-00002-of-00003.gguf").touch()
    whole, half = found_in(tmp_path)
    assert isinstance(whole, FoundModel)
    assert (whole.name, whole.path.name) == ("Big", "Big-00001-of-00003.gguf")
    assert whole.model.size == 3 * len(gguf())
    assert whole.model.parameters == 3 * 64 * 32
    assert isinstance(half, PassedOver)
    assert half.why == "1 of its 2 files are missing: Half-00002-of-00002.gguf"


def test_loops_of_links_end_and_no_model_is_listed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    entries = found_models._entries
    monkeypatch.setattr(found_models, "_entries", lambda d: looked.append(d) or entries(d))
    write(tmp_path / "a/m.gguf")
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "self.gguf").symlink_to(tmp_path / "self.gguf")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert names(found_in(tmp_path)) == ["m"]
    assert len(looked) == 2
    assert names(found_in(tmp_path, tmp_path / "a")) == ["m"]


def test_broken_ones_are_said_and_passed_over(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "good.gguf")
    (tmp_path / "short.gguf").write_bytes(gguf()[:-1])
    (tmp_path / "web\x1b[31mpage.gguf").write_text("<html>")
    ran = cli("models", str(tmp_path))
    assert ran.code == 0
    assert "good" in ran.out
    assert "short.gguf: it is cut off: 1 bytes are missing." in ran.err
    assert "page.gguf: it does not begin with GGUF." in ran.err
    assert "\x1b" not in ran.err + ran.out
    told = cli.quick("models", str(tmp_path), "--json").json
    assert [each["name"] for each in told["models"]] == ["good"]
    assert {Path(each["path"]).name[:3] for each in told["passed_over"]} == {"sho", "web"}


def test_whether_it_fits_is_weights_and_context(tmp_path: Path) -> None:
    model = model_of([read_header(write(tmp_path / "m.gguf"))])
    token = 2 * 2 * 16 * 2 * 2
    assert fit(model, 1000, 0).needed == model.size + 1000 * token
    assert fit(model, 10**9, 0).needed == model.size + 4096 * token
    exactly = model.size + 1000 * token
    assert fit(model, 1000, exactly).fits
    assert not fit(model, 1000, exactly - 1).fits
    assert fit(model, 1000, exactly - 1, "q8_0", "q8_0").fits


def test_what_is_told_of_a_model(cli: Cli, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf")
    (told,) = cli.quick("models", str(tmp_path), "--n-ctx", "100", "--json").json["models"]
    assert told == {
        "name": "m",
        "path": str(file),
        "place": "",
        "title": "Tiny",
        "architecture": "llama",
        "memory_kind": "attention",
        "parameters": 64 * 32,
        "quant": "Q8_0",
        "bytes": file.stat().st_size,
        "n_ctx_train": 4096,
        "window": 0,
        "token_bytes": 256.0,
        "line_bytes": 0,
        "chat_template": True,
        "n_ctx": 100,
        "needed_bytes": file.stat().st_size + 25_600,
        "fits": True,
    }


def test_the_table_fits_80_columns(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / f"{'long-name-' * 12}.gguf", llama__context_length=1_048_576)
    with cli.terminal("models", str(tmp_path), NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
    heading, row, *_ = terminal.lines()
    assert max(len(heading), len(row)) <= 80
    for title in ("NAME", "MEMORY", "QUANT", "TRAINED", "NEEDS", "FITS"):
        assert title in heading


def test_no_models_is_no_failure(cli: Cli, tmp_path: Path) -> None:
    ran = cli.quick("models", str(tmp_path))
    assert (ran.code, ran.out) == (0, "")
    assert "sessiond models DIR" in ran.err
    assert cli.quick("models", str(tmp_path / "none")).code == 2


def test_the_memory_of_an_amd_gpu_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    assert gpu_memory(tmp_path) == 0
    for card, size in {"card0": "512\n", "card1": "17163091968\n", "card2": "none"}.items():
        file = tmp_path / f"sys/class/drm/{card}/device/mem_info_vram_total"
        file.parent.mkdir(parents=True)
        file.write_text(size)
    assert gpu_memory(tmp_path) == 17163091968


def test_the_memory_of_an_nvidia_gpu_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 24564\necho '[N/A]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpu_memory(tmp_path) == 24564 << 20


def test_a_folder_nobody_may_read_is_passed_over(tmp_path: Path) -> None:
    assert list(find_models([Place("Ollama", tmp_path / "none", manifests=True)])) == []
