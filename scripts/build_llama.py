"""Installs llama-cpp-python for one kind of machine. Runs before anything else is installed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llama-cpp-python"

VENDOR_FOLDERS = ("/usr/local/cuda/bin", "/opt/rocm/bin")

WITHOUT_AMX = "-U__AMX_INT8__ -U__AMX_BF16__ -U__AMX_TILE__"
"""On CPUs that have it llama.cpp's AMX code dies of SIGILL where the compiler drops the stores of
its tile configuration, as Debian 12's does (ggml-org/llama.cpp pull request 26954, open)."""

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tool:
    """Something the build needs: how to see it, and what brings it."""

    name: str
    found: Callable[[Environment], bool]
    fix: str


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    cmake: str
    tools: tuple[Tool, ...]


def _program(*names: str, variable: str = "") -> Callable[[Environment], bool]:
    def found(environment: Environment) -> bool:
        if named := environment.get(variable, ""):
            return shutil.which(named) is not None
        path = os.pathsep.join([environment.get("PATH", ""), *VENDOR_FOLDERS])
        return any(shutil.which(name, path=path) for name in names)

    return found


def _cuda(name: str) -> Callable[[Environment], bool]:
    """A header of the CUDA toolkit: NVIDIA's place, CUDA_HOME, Debian's place."""

    def found(environment: Environment) -> bool:
        roots = (environment.get("CUDA_HOME") or "/usr/local/cuda", "/usr")
        return any(
            header.is_file()
            for root in roots
            for header in (
                Path(root, "include", name),
                *Path(root).glob(f"targets/*/include/{name}"),
            )
        )

    return found


def _rocm(*names: str) -> Callable[[Environment], bool]:
    """Headers of ROCm, where llama.cpp's build looks for them."""

    def found(environment: Environment) -> bool:
        root = Path(environment.get("ROCM_PATH") or "/opt/rocm")
        folder = root if root.is_dir() else Path("/usr")
        return all(Path(folder, "include", name).is_file() for name in names)

    return found


def _header(name: str, holding: str = "") -> Callable[[Environment], bool]:
    """A header below the Vulkan SDK or /usr that has the text `holding`, new since some version."""

    def found(environment: Environment) -> bool:
        header = Path(environment.get("VULKAN_SDK") or "/usr", "include", name)
        return header.is_file() and holding in header.read_text(errors="replace")

    return found


COMPILER = Tool(
    "a C++ compiler",
    _program("c++", "g++", "clang++", variable="CXX"),
    "apt install build-essential   (macOS: xcode-select --install)",
)
NVCC = Tool(
    "nvcc, the CUDA compiler",
    _program("nvcc", variable="CUDACXX"),
    "NVIDIA's CUDA toolkit (package cuda-toolkit of NVIDIA's Debian repository), or "
    "apt install nvidia-cuda-toolkit from Debian's non-free component",
)
CUBLAS = Tool(
    "cuBLAS",
    _cuda("cublas_v2.h"),
    "package libcublas-dev-<version of your CUDA> of NVIDIA's Debian repository; it is part of "
    "the whole cuda-toolkit",
)
VULKAN = Tool(
    "the Vulkan headers, 1.3.272 or newer",
    _header("vulkan/vulkan_core.h", holding="VK_EXT_layer_settings"),
    "apt install libvulkan-dev; on Debian 12 it is too old: unpack LunarG's Vulkan SDK and set "
    "VULKAN_SDK",
)
GLSLC = Tool("glslc, the shader compiler", _program("glslc"), "apt install glslc")
SPIRV = Tool(
    "the SPIR-V headers",
    _header("spirv/unified1/spirv.h"),
    "apt install spirv-headers",
)
HIPCC = Tool(
    "hipcc, the ROCm compiler",
    _program("hipcc"),
    "ROCm 6.1 or newer: package rocm-hip-sdk of AMD's Debian repository",
)
HIP_LIBRARIES = Tool(
    "the headers of HIP, hipBLAS and rocBLAS",
    _rocm("hip/hip_runtime.h", "hipblas/hipblas.h", "rocblas/rocblas.h"),
    "ROCm 6.1 or newer, or set ROCM_PATH to where it is",
)
METAL = Tool(
    "macOS with the Xcode command line tools",
    lambda environment: sys.platform == "darwin" and _program("xcrun")(environment),
    "Metal is only on Apple computers; there: xcode-select --install",
)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("cpu", "", ()),
        Kind("cuda", "-DGGML_CUDA=on", (NVCC, CUBLAS)),
        Kind("vulkan", "-DGGML_VULKAN=on", (VULKAN, GLSLC, SPIRV)),
        Kind("rocm", "-DGGML_HIP=on", (HIPCC, HIP_LIBRARIES)),
        Kind("metal", "-DGGML_METAL=on", (METAL,)),
    )
}


def missing(kind: Kind, environment: Environment) -> list[Tool]:
    """What this machine lacks for a build of that kind."""
    return [tool for tool in (COMPILER, *kind.tools) if not tool.found(environment)]


def command(kind: Kind, *, replace: bool) -> list[str]:
    """The pip command. It always compiles: a cached wheel may be of other flags or machines.

    `replace`: another kind is installed, and the same version must be installed over it.
    """
    pip = [sys.executable, "-m", "pip", "install", "-c", str(ROOT / "constraints.txt")]
    pip += ["--no-binary", PACKAGE, "--no-cache-dir"]
    if replace:
        pip += ["--force-reinstall", "--no-deps"]
    return [*pip, PACKAGE]


def with_cmake(kind: Kind, environment: Environment) -> dict[str, str]:
    """The build's environment; what the user put into CMAKE_ARGS stays, ours comes first."""
    arguments = f"{kind.cmake} {environment.get('CMAKE_ARGS', '')}".strip()
    path = os.pathsep.join([environment.get("PATH", ""), *VENDOR_FOLDERS])
    flags = {
        name: f"{WITHOUT_AMX} {environment.get(name, '')}".strip()
        for name in ("CFLAGS", "CXXFLAGS")
    }
    return {**environment, **flags, "CMAKE_ARGS": arguments, "PATH": path}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build_llama", description=__doc__)
    parser.add_argument("kind", help=f"one of: {', '.join(KINDS)}")
    parser.add_argument("--replace", action="store_true", help="another kind is installed")
    parser.add_argument("--check", action="store_true", help="only say what is missing")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    kind = KINDS.get(arguments.kind)
    if kind is None:
        rights = "|".join(name for name in KINDS if name != "cpu")
        print(f"GPU={arguments.kind} is not known. Use GPU={rights}, or GPU=cpu.", file=sys.stderr)
        return 2
    lacking = missing(kind, os.environ)
    for tool in lacking:
        print(f"GPU={kind.name} needs {tool.name}: {tool.fix}", file=sys.stderr)
    if lacking or arguments.check:
        return 1 if lacking else 0
    how = f" with {kind.cmake}" if kind.cmake else ""
    print(f"Compiling llama.cpp{how}. This takes minutes.", file=sys.stderr)
    pip = command(kind, replace=arguments.replace)
    return subprocess.run(pip, env=with_cmake(kind, os.environ)).returncode


if __name__ == "__main__":
    sys.exit(main())
