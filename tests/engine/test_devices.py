"""The build that fits the machine is told from its device files."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from sessiond.engine.devices import missing_gpu, present_gpu


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def machine(root: Path, *devices: str) -> Path:
    for device in devices:
        file = root / "dev" / device
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return root


@pytest.mark.parametrize(
    ("devices", "build"),
    [
        ((), None),
        (("null", "dri/card0"), None),
        (("nvidia0", "nvidiactl"), "cuda"),
        (("nvidiactl",), None),
        (("dxg",), "cuda"),
        (("kfd", "dri/renderD128"), "rocm"),
        (("dri/renderD128",), "vulkan"),
        (("nvidia0", "kfd", "dri/renderD128"), "cuda"),
    ],
)
def test_device_files_tell_the_build(
    tmp_path: Path, devices: tuple[str, ...], build: str | None
) -> None:
    assert present_gpu(machine(tmp_path, *devices)) == build


def test_apple_silicon_has_metal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert present_gpu(tmp_path) == "metal"


@pytest.mark.parametrize(("offload", "missing"), [(True, None), (False, "cuda")])
def test_a_gpu_is_missing_only_from_a_build_without_one(
    monkeypatch: pytest.MonkeyPatch, offload: bool, missing: str | None
) -> None:
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_supports_gpu_offload", lambda: offload)
    monkeypatch.setattr("sessiond.engine.devices.present_gpu", lambda: "cuda")
    assert missing_gpu() == missing
