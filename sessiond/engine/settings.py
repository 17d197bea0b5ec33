"""The llama.cpp settings sessiond uses, all explicit: some of its defaults hide problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KV_TYPES: Mapping[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
"""ggml type numbers of the KV cache, by name."""


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """`n_ctx` tokens for all sequences together, `n_batch` and `n_ubatch` tokens per decode.

    `threads` 0: the physical cores. `extra` are further parameters of llama.cpp's model or context
    by name.
    """

    model: Path
    n_ctx: int
    n_seq_max: int
    n_batch: int = 512
    n_ubatch: int = 512
    n_gpu_layers: int = -1
    threads: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = True
    extra: Mapping[str, object] = field(default_factory=dict)
