"""What the project says about itself agrees with itself."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import build_llama, fetch_models, structure
from sessiond import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A stub for type checkers, and a part of pydantic that pydantic itself pins.
STUBS = ("_typeshed", "pydantic_core")
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+")

# Written in pieces, so that this file does not name an address itself.
INDEX_ADDRESS = re.compile(
    r"py" r"pi\.org|pythonhos" r"ted\.org|(?:https?|file)://\S*/sim" r"ple\b"
    r"|--(?:extra-)?index-" r"url|--find-" r"links|registry\.npm" r"js|(?:deb|archive)\.(?:deb"
    r"ian|ubuntu)\.(?:org|com)"
)  # fmt: skip


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(line) for group in (PROJECT["dependencies"], *extras) for line in group]


def repository_files() -> list[Path]:
    """Files that git tracks or would: everything not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_the_newest_release_in_the_changelog_is_this_version() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__


def test_constraints_are_exact_pins_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    wrong = [
        line for line in lines if line and not line.startswith("#") and not PIN.fullmatch(line)
    ]
    assert wrong == []
    assert len(pins()) == sum(not line.startswith("#") for line in lines if line)


@pytest.mark.parametrize(
    "line", ["-e .", "a @ file:///x/a.whl", "a>=1", "https://x/a.whl", "a==1 b"]
)
def test_what_is_not_an_exact_pin_is_seen(line: str) -> None:
    assert not PIN.fullmatch(line)


def test_every_requirement_has_a_lower_bound_and_a_pin_that_meets_it() -> None:
    for requirement in requirements():
        assert ">=" in str(requirement.specifier), f"{requirement} has no lower bound"
        pin = pins().get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}"


def test_everything_that_the_requirements_bring_is_pinned() -> None:
    unpinned = set(closure(requirements())) - pins().keys()
    assert unpinned == set()


def closure(wanted: list[Requirement]) -> Iterator[str]:
    """Names of all distributions that an installation of `wanted` brings here."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(wanted)
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        yield name
        for line in metadata.distribution(name).requires or []:
            child = Requirement(line)
            if any(applies(child, extra) for extra in ("", *extras)):
                waiting.append(child)


def applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_what_the_package_imports_is_what_it_requires() -> None:
    required = {str(canonicalize_name(Requirement(line).name)) for line in PROJECT["dependencies"]}
    assert undeclared(structure.read_package(ROOT / "sessiond"), required) == set()
    assert undeclared([structure.module("sessiond.a", "import jinja2")], set()) == {"jinja2"}


def undeclared(modules: list[structure.Module], required: set[str]) -> set[str]:
    """Distributions that the modules import and that are not in `required`."""
    homes = metadata.packages_distributions()
    used = {name.split(".")[0] for source in modules for _, name in structure.imported(source)}
    outside = used - sys.stdlib_module_names - {"sessiond", *STUBS}
    return {str(canonicalize_name(homes[name][0])) for name in outside} - required


def test_the_packages_that_carry_models_are_pinned() -> None:
    for name in (fetch_models.SMOLLM2_PACKAGE, *fetch_models.GEMMA_PACKAGES):
        assert canonicalize_name(name) in pins()


def test_no_file_names_a_package_index() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in repository_files()
        if (match := INDEX_ADDRESS.search(path.read_text(errors="replace")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["https://" + "py" + "pi.org/x", "file:///opt/" + "simple", "--extra-index" + "-url x"]
)
def test_a_package_index_is_seen(text: str) -> None:
    assert INDEX_ADDRESS.search(text)


def test_a_fixed_gpu_kind_compiles_for_that_gpu() -> None:
    for name, flag in {"cuda": "CUDA", "vulkan": "VULKAN", "rocm": "HIP", "metal": "METAL"}.items():
        kind = build_llama.KINDS[name]
        assert build_llama.with_cmake(kind, {})["CMAKE_ARGS"] == f"-DGGML_{flag}=on"
        pip = build_llama.command(kind, replace=True)
        assert {"--no-binary", "--no-cache-dir", "--force-reinstall"} <= set(pip)


def test_every_build_leaves_amx_out_and_keeps_the_flags_of_the_user() -> None:
    built = build_llama.with_cmake(build_llama.KINDS["cpu"], {"CXXFLAGS": "-O2"})
    assert built["CFLAGS"] == build_llama.WITHOUT_AMX
    assert built["CXXFLAGS"] == f"{build_llama.WITHOUT_AMX} -O2"


def test_what_a_gpu_build_lacks_is_known_before_it_starts(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "VULKAN_SDK": str(tmp_path), "ROCM_PATH": str(tmp_path)}
    assert build_llama.missing(build_llama.KINDS["cpu"], nothing) == [build_llama.COMPILER]
    for name in ("vulkan", "rocm"):
        kind = build_llama.KINDS[name]
        assert {tool.name for tool in build_llama.missing(kind, nothing)} >= {
            tool.name for tool in kind.tools if tool is not build_llama.HIPCC
        }
    old = tmp_path / "include" / "vulkan" / "vulkan_core.h"
    old.parent.mkdir(parents=True)
    old.write_text("VK_HEADER_VERSION 239")
    assert build_llama.VULKAN in build_llama.missing(build_llama.KINDS["vulkan"], nothing)
    old.write_text("VK_EXT_layer_settings")
    assert build_llama.VULKAN not in build_llama.missing(build_llama.KINDS["vulkan"], nothing)
