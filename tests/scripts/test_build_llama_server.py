"""`make llama-server`: the right source, the flags of sessiond's llama.cpp, words if it fails."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from scripts import build_llama, build_llama_server
from scripts.build_llama import KINDS
from scripts.build_llama_server import BuildFailed, Places

INNER = "llama_cpp_python-1.2.3/vendor/llama.cpp/CMakeLists.txt"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path, "1.2.3", KINDS["cuda"])


def programs(folder: Path, *names: str) -> dict[str, str]:
    """An environment with these alone."""
    folder.mkdir()
    for name in names:
        (folder / name).touch(mode=0o755)
    return {"PATH": str(folder)}


def sdist(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


def test_the_pin_is_the_version_that_make_installs() -> None:
    constraints = (build_llama.ROOT / "constraints.txt").read_text()
    version = build_llama_server.pinned(constraints)
    assert f"\nllama_cpp_python=={version}\n" in constraints
    assert build_llama_server.pinned("a==1\nllama-cpp-python==0.9\n") == "0.9"
    with pytest.raises(BuildFailed, match="no line llama-cpp-python=="):
        build_llama_server.pinned("llama-cpp-python-extra==1\n")


def test_only_the_source_of_one_package_is_downloaded(tmp_path: Path) -> None:
    command = build_llama_server.download("1.2.3", tmp_path)
    assert command[1:4] == ["-m", "pip", "download"]
    assert command[command.index("--no-binary") + 1] == build_llama.PACKAGE
    assert {"--no-deps", str(tmp_path), "llama-cpp-python==1.2.3"} <= set(command)


def test_the_flags_are_those_of_the_python_build(places: Places, tmp_path: Path) -> None:
    """With those of the user, which come last and win."""
    given = {"CMAKE_ARGS": "-DGGML_X='a b'", "CXXFLAGS": "-O2"}
    given |= programs(tmp_path / "bin", "cmake", "ninja")
    environment = build_llama_server.variables(places, given)
    ours = build_llama.with_cmake(places.kind, given)
    for name in ("CFLAGS", "CXXFLAGS", "CMAKE_ARGS"):
        assert environment[name] == ours[name]
    command = build_llama_server.configure(places, environment)
    assert command[command.index("-G") + 1] == "Ninja"
    assert command[-2:] == ["-DGGML_CUDA=on", "-DGGML_X=a b"]
    assert {"-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"} <= set(command)
    assert not [option for option in command if option.startswith("-DGGML_NATIVE")]


def test_make_will_do_for_ninja(places: Places, tmp_path: Path) -> None:
    environment = programs(tmp_path / "bin", "cmake", "make")
    assert build_llama_server.lacking(environment) == []
    environment |= {"CMAKE_ARGS": ""}
    command = build_llama_server.configure(places, environment)
    assert command[command.index("-G") + 1] == "Unix Makefiles"


def test_what_pip_brings_is_found(places: Places, tmp_path: Path) -> None:
    nothing = programs(tmp_path / "bin")
    assert build_llama_server.lacking(nothing) == ["cmake", "ninja"]
    environment = build_llama_server.variables(places, nothing)
    assert environment["PATH"].split(os.pathsep)[-1] == str(places.tools / "bin")


def test_missing_tools_are_told_in_words(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str]) -> None:
        raise BuildFailed("no")

    monkeypatch.setattr(build_llama_server, "call", fail)
    nothing = programs(tmp_path / "bin")
    with pytest.raises(BuildFailed, match=r"no cmake and ninja, .* apt install cmake"):
        build_llama_server.bring_tools(places, nothing)
    monkeypatch.setenv("PATH", nothing["PATH"])
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildFailed, match=r"GPU=cpu needs a C\+\+ compiler: apt install"):
        build_llama_server.build(KINDS["cpu"], None, configure_only=True)


def test_a_program_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BuildFailed, match="ended with 3: sh -c 'echo told; exit 3'"):
        build_llama_server.call(["sh", "-c", "echo told; exit 3"], {"PATH": os.environ["PATH"]})
    told = capfd.readouterr()
    assert (told.out, "told" in told.err) == ("", True)


def test_the_source_is_unpacked_once(places: Places, tmp_path: Path) -> None:
    build_llama_server.unpack(sdist(tmp_path / "a.tar.gz", INNER), places)
    assert (places.source / "CMakeLists.txt").is_file()
    build_llama_server.unpack(tmp_path / "none.tar.gz", places)


def test_another_source_is_refused(places: Places, tmp_path: Path) -> None:
    other = sdist(tmp_path / "a.tar.gz", INNER.replace("1.2.3", "1.2.4"))
    with pytest.raises(BuildFailed, match=r"a\.tar\.gz has no llama_cpp_python-1\.2\.3/vendor"):
        build_llama_server.unpack(other, places)
    assert not places.source.exists()


def test_its_use_is_told() -> None:
    said = build_llama_server.usage(build_llama_server.VENV / "llama-server")
    assert "python -m scripts.bench_day --launch llama-server .venv/llama-server" in said
