"""Checks on a CUDA machine what no other can show: pinned memory, drains, gaps, bit equality.

    python -m scripts.cuda_check [--model GGUF] [--json FILE]

It builds llama.cpp for CUDA where that is not installed, and writes a hybrid of random weights with
the state of a 27B; all of it takes less than ten minutes. Without CUDA it changes nothing and
exits with 1. `--dry` runs the same on whatever is installed, with a tiny model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from scripts import results
from scripts.fetch_models import HYBRID_TINY, MODELS, ROOT, FetchError, Model, fetch, fetch_smollm2
from scripts.results import Goal, Json, environment, progress
from sessiond.cli.output import Column
from sessiond.engine.devices import present_gpu
from sessiond.engine.memory import MemoryKind

MINUTES = 10
NOT_RUN = {"ran": False, "why": "no CUDA machine was available"}
_SUPPORTED = "import sys, llama_cpp.llama_cpp as C; sys.exit(not C.llama_supports_gpu_offload())"


class NotChecked(Exception):
    """There is nothing to check, or no way to; the message says why."""


@dataclass(slots=True)
class Clock:
    """Seconds by stage, in order."""

    spent: dict[str, float]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        progress(name)
        began = time.monotonic()
        yield
        self.spent[name] = round(time.monotonic() - began, 1)

    @property
    def minutes(self) -> float:
        return sum(self.spent.values()) / 60


def build() -> None:
    """Have a llama-cpp-python with CUDA. Raises NotChecked where that cannot be."""
    if present_gpu() != "cuda":
        raise NotChecked("there is no CUDA device here (no /dev/nvidia0)")
    if _supported():
        return
    command = [sys.executable, str(ROOT / "scripts" / "build_llama.py"), "cuda", "--replace"]
    cores = str(os.cpu_count() or 1)
    arguments = f"-DCMAKE_CUDA_ARCHITECTURES=native {os.environ.get('CMAKE_ARGS', '')}".strip()
    fast = {"CMAKE_BUILD_PARALLEL_LEVEL": cores, "CMAKE_ARGS": arguments}
    if subprocess.run(command, env={**os.environ, **fast}).returncode or not _supported():
        raise NotChecked("llama.cpp could not be built for CUDA; see above")


def _supported() -> bool:
    """Asked of a process of its own: what is imported here could not be replaced any more."""
    return subprocess.run([sys.executable, "-c", _SUPPORTED]).returncode == 0


def hybrid_with_large_state() -> Path:
    def make(part: Path) -> None:
        from scripts.make_hybrid import make_hybrid

        make_hybrid(fetch_smollm2(), part, "27b-state")

    return fetch(Model(MODELS / "tests" / "hybrid-27b-state.gguf", make))


def machine() -> str:
    """GPU, memory and driver, as NVIDIA's tool says it; "" without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.strip()


def measure(model: Path, *, dry: bool) -> tuple[Json, dict[str, bool]]:
    """The results by name, and what must be true."""
    from scripts import cuda_measures as measures

    size = measures.TINY if dry else measures.Size()
    bench = measures.Bench(model, size)
    try:
        if bench.context.memory.kind is not MemoryKind.HYBRID:
            raise NotChecked(f"{model.name} is not a hybrid")
        pinned = measures.pinned(bench)
        steps: dict[str, Callable[[measures.Bench], Any]] = {
            "drains": measures.drains,
            "fragmented": measures.moves,
            "gaps": measures.gaps,
        }
        found: Json = {"pinned": asdict(pinned), "size": asdict(size)}
        for name, step in steps.items():
            progress(f"measuring {name}")
            found[name] = asdict(step(bench))
        equal = measures.bit_equality(bench)
    finally:
        bench.close()
    checks = {
        "restored logits are bit-identical": equal,
        "blocks restored between others are byte-equal": found["fragmented"]["bytes_equal"],
    }
    if not dry:
        checks["staging is pinned, as CUDA sees it"] = pinned.really
    return found, checks


def goals(found: Json, minutes: float) -> list[Goal]:
    drains = found["drains"]
    return [
        Goal("build and checks together, minutes", minutes, MINUTES, at_least=False),
        Goal(
            "drain to fresh memory / to staging, ms",
            drains["fresh_ms"].median / drains["staging_ms"].median,
            1.0,
        ),
    ]


def show(found: Json, checks: dict[str, bool]) -> None:
    drains, gaps, moves = found["drains"], found["gaps"], found["fragmented"]
    rate = drains["bytes"] / drains["staging_ms"].median / 1e6
    rows: list[tuple[str, object]] = [
        ("staging memory", f"{found['pinned']['kind']} ({found['pinned']['detail']})"),
        ("snapshot, MiB", drains["bytes"] / (1 << 20)),
        ("drain to staging, ms", drains["staging_ms"]),
        ("drain to staging, GB/s", rate),
        ("drain to touched memory, ms", drains["touched_ms"]),
        ("drain to fresh memory, ms", drains["fresh_ms"]),
        ("drain behind a prefill chunk, ms", drains["queued_ms"]),
        ("save a block between others, ms", moves["export_block_ms"]),
        ("restore a block between others, ms", moves["import_block_ms"]),
        ("restore a snapshot, ms", moves["import_snapshot_ms"]),
        ("gap of a stream, ms", gaps["alone"]),
        ("gap with a capture, ms", gaps["capture"]),
        ("gap with a restore, ms", gaps["restore"]),
        *((name, "yes" if true else "NO") for name, true in checks.items()),
    ]
    results.show("CUDA check", (Column(""), Column("", right=True)), rows)


def check(model: Path | None, *, dry: bool) -> tuple[Json, dict[str, bool]]:
    """The whole run; the document and the checks. Raises NotChecked."""
    clock = Clock({})
    with clock.stage("build"):
        if not dry:
            build()
    with clock.stage("model"):
        path = model or (fetch(HYBRID_TINY) if dry else hybrid_with_large_state())
    before = environment()
    with clock.stage("measure"):
        found, checks = measure(path, dry=dry)
    asked = goals(found, clock.minutes)
    show(found, checks)
    results.show_goals(asked)
    document = results.document(
        "cuda", {"model": path.name, "seconds": clock.spent}, found, asked, before
    )
    head = {"ran": True, "dry": dry, "machine": machine(), "checks": checks}
    return {**head, **document}, checks


def main(
    model: Annotated[
        Path | None, typer.Option(help="A hybrid GGUF. Not said: one is made.", exists=True)
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the results go. Not said: docs/benchmarks/cuda.json.")
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="Tiny, on any machine; kept only with --json.")
    ] = False,
) -> None:
    """Check pinned memory, drains, restores and gaps on a CUDA machine."""
    try:
        document, checks = check(model, dry=dry)
    except (NotChecked, FetchError) as error:
        progress(f"cuda_check: {error}. Nothing was written.")
        raise typer.Exit(1) from None
    if json or not dry:
        progress(f"Kept in {results.save(document, json)}")
    if not all(checks.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
