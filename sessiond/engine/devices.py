"""Which GPU the machine has, and whether this build of llama.cpp can use one."""

from __future__ import annotations

import platform
from pathlib import Path


def missing_gpu() -> str | None:
    """The `GPU=` to build with, if there is a GPU and the build cannot use any."""
    import llama_cpp.llama_cpp as llama

    return None if llama.llama_supports_gpu_offload() else present_gpu()


def present_gpu(root: Path = Path("/")) -> str | None:
    """The kind of build that fits the GPU device files under `root`; None without a GPU."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return "metal"
    dev = root / "dev"
    if (dev / "nvidia0").exists() or (dev / "dxg").exists():
        return "cuda"
    if (dev / "kfd").exists():
        return "rocm"
    return "vulkan" if any(dev.glob("dri/renderD*")) else None
