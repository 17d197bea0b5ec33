"""The check for CUDA machines: its measures run here, and it never claims what it did not see."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import cuda_check, cuda_measures, results
from scripts.cuda_check import NOT_RUN, NotChecked
from scripts.cuda_measures import Pinned
from sessiond.engine.devices import present_gpu
from sessiond.engine.host_memory import MemoryLock

KEPT = results.RESULTS / "cuda.json"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "present_gpu", lambda: None)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are kept by default, away from the repository's own."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    path = tmp_path / "cuda.json"
    path.write_text("as it was")
    return path


def test_a_dry_run_measures_everything_that_needs_no_gpu(
    models: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "dry.json"
    cuda_check.main(model=models("hybrid"), json=out, dry=True)
    told = json.loads(out.read_text())
    assert (told["ran"], told["dry"], told["script"]) == (True, True, "cuda")
    assert told["environment"]["cpu"] and set(told["settings"]["seconds"]) == {
        "build",
        "model",
        "measure",
    }
    assert told["checks"] == {
        "restored logits are bit-identical": True,
        "blocks restored between others are byte-equal": True,
    }
    found = told["results"]
    assert set(found) == {"pinned", "size", "drains", "fragmented", "gaps"}
    assert found["pinned"]["kind"] in set(MemoryLock)
    assert found["drains"]["bytes"] > 100_000
    assert found["fragmented"]["difference"] < 0.01
    assert len(found["fragmented"]["export_block_ms"]) == 4
    page = capsys.readouterr().out
    assert "gap with a restore" in page and "bit-identical" in page


def test_a_dry_run_keeps_nothing_unless_told(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "check", lambda model, dry: ({"script": "cuda"}, {}))
    cuda_check.main(dry=True)
    assert kept.read_text() == "as it was"
    cuda_check.main(dry=False)
    assert json.loads(kept.read_text()) == {"script": "cuda"}


def test_without_cuda_it_says_so_exits_with_1_and_changes_nothing(
    no_gpu: None, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(cuda_check.typer.Exit) as left:
        cuda_check.main()
    assert left.value.exit_code == 1
    assert "no CUDA device" in capsys.readouterr().err
    assert kept.read_text() == "as it was"


@pytest.mark.skipif(present_gpu() == "cuda", reason="this machine has CUDA: it would run")
def test_the_command_itself_does_so_here() -> None:
    before = KEPT.read_bytes()
    told = subprocess.run(
        [sys.executable, "-m", "scripts.cuda_check"],
        cwd=results.ROOT,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1 and "no CUDA device" in told.stderr
    assert "Traceback" not in told.stderr
    assert KEPT.read_bytes() == before


def test_the_kept_file_says_where_it_ran_or_that_it_did_not() -> None:
    told: dict[str, Any] = json.loads(KEPT.read_text())
    if told["ran"]:
        assert told["machine"] and not told["dry"] and told["environment"]["commit"]
    else:
        assert told == NOT_RUN


def test_a_failed_check_is_an_error_and_is_still_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"script": "cuda"}, {"restored logits are bit-identical": False}
    monkeypatch.setattr(cuda_check, "check", lambda model, dry: found)
    with pytest.raises(cuda_check.typer.Exit) as left:
        cuda_check.main()
    assert left.value.exit_code == 1
    assert json.loads(kept.read_text())["script"] == "cuda"


def test_a_model_of_another_kind_is_refused(
    models: Callable[[str], Path],
) -> None:
    with pytest.raises(NotChecked, match="is not a hybrid"):
        cuda_check.measure(models("attention"), dry=True)


@pytest.mark.parametrize("builds", [False, True])
def test_it_builds_only_what_is_not_there(builds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    supported = [False, True] if builds else [True]

    def run(command: list[str], *, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        assert "CMAKE_CUDA_ARCHITECTURES=native" in env["CMAKE_ARGS"]
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(cuda_check, "present_gpu", lambda: "cuda")
    monkeypatch.setattr(cuda_check, "_supported", lambda: supported.pop(0))
    monkeypatch.setattr(cuda_check.subprocess, "run", run)
    cuda_check.build()
    assert [command[-2:] for command in commands] == ([["cuda", "--replace"]] if builds else [])


@pytest.mark.parametrize("code", [1, 0])
def test_a_build_that_fails_or_has_no_cuda_is_told(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_check, "present_gpu", lambda: "cuda")
    monkeypatch.setattr(cuda_check, "_supported", lambda: False)
    monkeypatch.setattr(
        cuda_check.subprocess,
        "run",
        lambda command, env: subprocess.CompletedProcess(command, code),
    )
    with pytest.raises(NotChecked, match="could not be built"):
        cuda_check.build()


@pytest.mark.parametrize(
    ("kind", "cuda", "really"),
    [
        ("device", "host", True),
        ("device", "unregistered", False),
        ("device", "", False),
        ("locked", "host", False),
    ],
)
def test_pinned_is_what_both_ggml_and_cuda_call_so(kind: str, cuda: str, really: bool) -> None:
    assert Pinned(kind, "CUDA_Host", cuda).really is really


def test_the_cuda_runtime_is_asked_by_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"code": 0, "kind": 1}

    class Runtime:
        def __init__(self, path: str) -> None:
            assert path == "/opt/libcudart.so.12"

        @staticmethod
        def cudaPointerGetAttributes(attributes: Any, pointer: ctypes.c_void_p) -> int:
            attributes[0] = answers["kind"] if pointer.value == 4096 else 0
            return answers["code"]

    monkeypatch.setattr(cuda_measures, "_loaded", lambda name: iter(["/opt/libcudart.so.12"]))
    monkeypatch.setattr(cuda_measures.ctypes, "CDLL", Runtime)
    assert cuda_measures._cuda_says(4096) == "host"
    assert cuda_measures._cuda_says(8192) == "unregistered"
    answers["code"] = 1
    assert cuda_measures._cuda_says(4096) == "error 1"
    monkeypatch.setattr(cuda_measures, "_loaded", lambda name: iter(()))
    assert cuda_measures._cuda_says(4096) == ""


def test_loaded_libraries_are_found_by_name() -> None:
    assert list(cuda_measures._loaded("libllama"))
    assert not list(cuda_measures._loaded("libcudart-not-there"))
