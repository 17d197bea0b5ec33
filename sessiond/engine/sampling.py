"""How a reply is sampled and when it ends, as a request asks for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """llama.cpp's sampler chain: logit bias, penalties, top-k, top-p, min-p, temperature, draw.

    `temperature` 0 is greedy. `seed` None draws one. `top_k` 0, `top_p` 1 and `min_p` 0 are off.
    `repeat_last_n` counts tokens.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """`max_tokens` None: as much as there is room. `ignore_eos` is for benchmarks."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
