"""llama.cpp's sampler chain for one run. Engine thread only."""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as C

from sessiond.engine.memory import Tokens
from sessiond.engine.sampling import Sampling

_RANDOM_SEED = 0xFFFFFFFF


class ChainSampler:
    """Logit bias, penalties, top-k, top-p, min-p, temperature, the draw: llama-server's order."""

    def __init__(self, context: Any, vocab: Any, sampling: Sampling, history: Tokens) -> None:
        self._context = context
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        self._remembers = _has_penalties(sampling)
        for link in _links(vocab, sampling):
            C.llama_sampler_chain_add(self._chain, link)
        if self._remembers:
            for token in history[-sampling.repeat_last_n :]:
                C.llama_sampler_accept(self._chain, int(token))

    def sample(self, row: int) -> int:
        return int(C.llama_sampler_sample(self._chain, self._context, row))

    def close(self) -> None:
        C.llama_sampler_free(self._chain)


def _has_penalties(sampling: Sampling) -> bool:
    return sampling.repeat_last_n > 0 and (
        sampling.repeat_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


def _links(vocab: Any, sampling: Sampling) -> list[Any]:
    links: list[Any] = []
    if sampling.logit_bias:
        biases = (C.llama_logit_bias * len(sampling.logit_bias))(*sampling.logit_bias)
        n_vocab = C.llama_vocab_n_tokens(vocab)
        links.append(C.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
    if _has_penalties(sampling):
        links.append(
            C.llama_sampler_init_penalties(
                C.llama_vocab_n_tokens(vocab),
                sampling.repeat_last_n,
                sampling.repeat_penalty,
                sampling.frequency_penalty,
                sampling.presence_penalty,
            )
        )
    return links + (
        _drawing(sampling) if sampling.temperature > 0 else [C.llama_sampler_init_greedy()]
    )


def _drawing(sampling: Sampling) -> list[Any]:
    links: list[Any] = []
    if sampling.top_k > 0:
        links.append(C.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1.0:
        links.append(C.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p > 0.0:
        links.append(C.llama_sampler_init_min_p(sampling.min_p, 1))
    links.append(C.llama_sampler_init_temp(sampling.temperature))
    seed = _RANDOM_SEED if sampling.seed is None else sampling.seed
    links.append(C.llama_sampler_init_dist(seed & _RANDOM_SEED))
    return links
