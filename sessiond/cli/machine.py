"""The memory of this machine that a model may take, and whether one fits."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sessiond.engine.gguf_model import GgufModel

_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `available` is what programs can have now, `gpu` is 0 where it is not known."""

    total: int
    available: int
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """A model with one line of `tokens` tokens: `needed` of `available` bytes."""

    tokens: int
    needed: int
    available: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.available


def fit(
    model: GgufModel, tokens: int, available: int, type_k: str = "f16", type_v: str = "f16"
) -> Fit:
    """With no more tokens than the model was trained for."""
    tokens = min(tokens, model.n_ctx_train) if model.n_ctx_train else tokens
    return Fit(tokens, model.size + model.context_bytes(tokens, type_k, type_v), available)


def memory() -> Memory:
    import psutil

    ram = psutil.virtual_memory()
    return Memory(ram.total, ram.available, gpu_memory())


def gpu_memory(root: Path = Path("/")) -> int:
    """Of the largest GPU, in bytes; 0 where none says."""
    amd = [_number(file) for file in root.glob("sys/class/drm/card*/device/mem_info_vram_total")]
    return max([*amd, _nvidia()])


def _nvidia() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(  # noqa: S603
            query, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    sizes = [int(line) for line in told.stdout.split() if line.isdigit()]
    return max(sizes, default=0) << 20


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
