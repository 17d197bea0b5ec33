"""Builds the stock llama-server of the llama.cpp that sessiond uses, to be compared with it.

The source is in llama-cpp-python's source distribution. Compiler flags and GPU are those of
`scripts.build_llama`. What was compiled is kept until the binary is there: a run that was broken
off goes on. The web page is left out, so nothing is fetched while compiling.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts import build_llama
from scripts.build_llama import KINDS, PACKAGE, ROOT, Environment, Kind

TARGET = "llama-server"
VENV = ROOT / ".venv"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
)
_PIN = re.compile(r"^llama[_-]cpp[_-]python==(?P<version>\S+)$", re.MULTILINE)


class BuildFailed(Exception):
    """Told to the user."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where source, tools and objects lie while it is built."""

    folder: Path
    version: str
    kind: Kind

    @property
    def source(self) -> Path:
        return self.folder / f"llama_cpp_python-{self.version}" / "vendor" / "llama.cpp"

    @property
    def build(self) -> Path:
        return self.source / f"build-{self.kind.name}"

    @property
    def tools(self) -> Path:
        return self.folder / "tools"


def pinned(constraints: str) -> str:
    """The version that sessiond uses."""
    if (found := _PIN.search(constraints)) is None:
        raise BuildFailed(f"constraints.txt has no line {PACKAGE}==VERSION.")
    return found["version"]


def download(version: str, folder: Path) -> list[str]:
    """The pip command. Only this package as source: what prepares it need not be compiled."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE]
    return [*pip, "--dest", str(folder), f"{PACKAGE}=={version}"]


def lacking(environment: Environment) -> list[str]:
    """Packages of pip that bring the programs which are not there; `make` will do for ninja."""
    path = environment.get("PATH", "")
    found = {name: shutil.which(name, path=path) for name in ("cmake", "ninja", "make")}
    return [
        *(["cmake"] if not found["cmake"] else []),
        *(["ninja"] if not found["ninja"] and not found["make"] else []),
    ]


def variables(places: Places, environment: Environment) -> dict[str, str]:
    """The build's environment: that of llama-cpp-python, and programs that pip has brought."""
    found = build_llama.with_cmake(places.kind, environment)
    found["PATH"] = os.pathsep.join([found["PATH"], str(places.tools / "bin")])
    found["PYTHONPATH"] = str(places.tools)
    found.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    return found


def configure(places: Places, environment: Environment) -> list[str]:
    """`environment` is `variables`: its CMAKE_ARGS come last."""
    ninja = shutil.which("ninja", path=environment["PATH"])
    return [
        *("cmake", "-S", str(places.source), "-B", str(places.build)),
        *("-G", "Ninja" if ninja else "Unix Makefiles"),
        *OPTIONS,
        *shlex.split(environment["CMAKE_ARGS"]),
    ]


def compile_(places: Places) -> list[str]:
    return ["cmake", "--build", str(places.build), "--target", TARGET]


def unpack(sdist: Path, places: Places) -> None:
    """All or nothing; nothing to do if it was unpacked before."""
    if places.source.is_dir():
        return
    root = places.source.parent.parent
    half = places.folder / "unpacking"
    shutil.rmtree(half, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(half, filter="data")
    if not (half / root.name / "vendor" / "llama.cpp" / "CMakeLists.txt").is_file():
        raise BuildFailed(f"{sdist} has no {root.name}/vendor/llama.cpp.")
    (half / root.name).rename(root)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def call(command: Sequence[str], environment: Environment | None = None) -> None:
    """What the program says goes to stderr. Raises BuildFailed."""
    told = shlex.join(command)
    tell(f"$ {told}")
    path = None if environment is None else environment["PATH"]
    program = shutil.which(command[0], path=path) or command[0]
    done = subprocess.run([program, *command[1:]], env=environment, stdout=sys.stderr)
    if done.returncode:
        raise BuildFailed(f"It ended with {done.returncode}: {told}")


def bring_tools(places: Places, environment: Environment) -> None:
    """Into a folder of their own."""
    names = lacking(environment)
    if not names:
        return
    missing = " and ".join(names)
    tell(f"There is no {missing} here; pip brings it.")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(places.tools)]
    try:
        call([*pip, *names])
    except BuildFailed as error:
        told = f"There is no {missing}, and pip brought none. Do: apt install cmake ninja-build"
        raise BuildFailed(told) from error


def source_of(places: Places, sdist: Path | None) -> None:
    if sdist is None and not places.source.is_dir():
        call(download(places.version, places.folder))
        names = sorted(places.folder.glob(f"llama_cpp_python-{places.version}.tar.*"))
        if not names:
            raise BuildFailed(f"pip left no source distribution in {places.folder}.")
        sdist = names[0]
    if sdist is not None:
        unpack(sdist, places)


def build(kind: Kind, sdist: Path | None, *, configure_only: bool) -> Path:
    """Returns the binary, or the build folder if it is only configured. Raises BuildFailed."""
    missing = build_llama.missing(kind, os.environ)
    if missing:
        lines = [f"GPU={kind.name} needs {tool.name}: {tool.fix}" for tool in missing]
        raise BuildFailed("\n".join(lines))
    version = pinned((ROOT / "constraints.txt").read_text())
    places = Places(VENV / f"{TARGET}.build", version, kind)
    places.folder.mkdir(parents=True, exist_ok=True)
    environment = variables(places, os.environ)
    bring_tools(places, environment)
    tell(f"{TARGET} of {PACKAGE} {version}, {kind.name}.")
    source_of(places, sdist)
    call(configure(places, environment), environment)
    if configure_only:
        return places.build
    tell("Compiling. This takes minutes; a run that was broken off goes on.")
    call(compile_(places), environment)
    binary = VENV / TARGET
    new = binary.with_name(f"{TARGET}.new")
    shutil.copy2(places.build / "bin" / TARGET, new)
    new.replace(binary)
    shutil.rmtree(places.folder)
    return binary


def usage(binary: Path) -> str:
    path = binary.relative_to(ROOT) if binary.is_relative_to(ROOT) else binary
    scripts = ("bench_day", "bench_load")
    uses = [f"  python -m scripts.{name} --launch {TARGET} {path}" for name in scripts]
    return "\n".join([f"{path} is built. To compare it with sessiond:", *uses])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build_llama_server", description=__doc__)
    parser.add_argument("kind", nargs="?", default="cpu", choices=KINDS, help="as GPU= of make")
    parser.add_argument("--sdist", type=Path, help="of llama-cpp-python, downloaded before")
    parser.add_argument("--configure-only", action="store_true", help="compile nothing")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    only = arguments.configure_only
    try:
        found = build(KINDS[arguments.kind], arguments.sdist, configure_only=only)
    except (BuildFailed, OSError, tarfile.TarError) as error:
        tell(str(error))
        return 1
    print(f"Configured in {found}; nothing was compiled." if only else usage(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
