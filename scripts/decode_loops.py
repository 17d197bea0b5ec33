"""One decoding loop as a process of its own: bare llama.cpp, or sessiond's engine without HTTP.

    python -m scripts.decode_loops bare|engine MODEL THREADS N_CTX PROMPT_FILE TOKENS

Says `{"ready": true}` when the model is loaded. For each line on stdin it then decodes TOKENS
tokens after the prompt, greedily, and writes what that took. It sleeps in between.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as C
import numpy as np

from scripts.daemon import Json
from sessiond.engine.memory import Tokens

LINES = 16
"""As many lines as the daemon keeps of an attention model."""


class Task(NamedTuple):
    model: Path
    threads: int
    n_ctx: int
    prompt: str
    tokens: int


def decoded(times: list[float], text: str) -> Json:
    """`us_per_token` from the first token to the last one."""
    return {"us_per_token": (times[-1] - times[0]) / (len(times) - 1) * 1e6, "text": text}


def cpu_ns(pid: int) -> int:
    """CPU time of the main thread of a process: of a daemon's event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


class BareLoop:
    """What one would write by hand: llama_decode, a greedy sampler chain, a piece of text."""

    def __init__(self, task: Task) -> None:
        self._task = task
        C.llama_backend_init()
        self._silent = C.llama_log_callback(lambda level, text, data: None)
        C.llama_log_set(self._silent, None)
        model = C.llama_model_load_from_file(
            str(task.model).encode(), C.llama_model_default_params()
        )
        self._vocab = C.llama_model_get_vocab(model)
        self._context = C.llama_init_from_model(model, self._params())
        self._memory = C.llama_get_memory(self._context)
        self._sampler = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        C.llama_sampler_chain_add(self._sampler, C.llama_sampler_init_greedy())
        self._piece = ctypes.create_string_buffer(64)

    def run(self) -> Json:
        C.llama_memory_clear(self._memory, True)
        prompt = self._tokenized()
        token = self._next(prompt)
        times, pieces = [time.perf_counter()], [self._text_of(token)]
        single = np.empty(1, np.int32)
        while len(times) < self._task.tokens:
            single[0] = token
            token = self._next(single)
            pieces.append(self._text_of(token))
            times.append(time.perf_counter())
        return decoded(times, b"".join(pieces).decode(errors="replace"))

    def _params(self) -> Any:
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = self._task.n_ctx, 512, 512
        params.n_threads = params.n_threads_batch = self._task.threads
        params.n_seq_max, params.kv_unified, params.swa_full = 1, True, False
        params.flash_attn_type, params.no_perf = 1, True
        return params

    def _tokenized(self) -> Tokens:
        raw = self._task.prompt.encode()
        tokens = np.empty(len(raw) + 8, np.int32)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(C.llama_token))
        count = C.llama_tokenize(self._vocab, raw, len(raw), pointer, len(tokens), True, False)
        return tokens[:count]

    def _next(self, tokens: Tokens) -> int:
        """llama.cpp gives the positions itself: they follow what its only sequence holds."""
        pointer = tokens.ctypes.data_as(ctypes.POINTER(C.llama_token))
        if C.llama_decode(self._context, C.llama_batch_get_one(pointer, len(tokens))) != 0:
            raise SystemExit("llama_decode failed")
        return int(C.llama_sampler_sample(self._sampler, self._context, -1))

    def _text_of(self, token: int) -> bytes:
        count = C.llama_token_to_piece(self._vocab, token, self._piece, 64, 0, False)
        return self._piece.raw[:count]


async def engine_loop(task: Task, answer: Callable[[Json], None]) -> None:
    """The engine thread and its queue, read from an event loop as the daemon does."""
    from sessiond.engine.context import Context, Model
    from sessiond.engine.core import SPARES
    from sessiond.engine.events import Delta, Ended, Progress
    from sessiond.engine.llama import LlamaContext, LlamaModel, start_backend
    from sessiond.engine.run import Run
    from sessiond.engine.sampling import Ending, Sampling
    from sessiond.engine.settings import ContextSettings
    from sessiond.engine.thread import Engine

    settings = ContextSettings(task.model, task.n_ctx, LINES + SPARES, threads=task.threads)

    def load() -> tuple[Model, Context]:
        start_backend()
        model = LlamaModel(settings)
        return model, LlamaContext(model, settings)

    engine = Engine(load)
    await engine.start()
    prompt = engine.model.tokenize(task.prompt, add_special=True, parse_special=False)
    ending = Ending(max_tokens=task.tokens, ignore_eos=True)
    run = Run(0, prompt, 0, engine.core.context.n_ctx, Sampling(temperature=0), ending)
    answer({"ready": True})
    while await asyncio.to_thread(sys.stdin.readline):
        times: list[float] = []

        def heard(event: Progress | Delta, times: list[float] = times) -> None:
            if isinstance(event, Delta):
                times.append(time.perf_counter())

        before = cpu_ns(os.getpid())
        handle = await engine.run(run, heard)
        ended = await handle.wait()
        loop_ns = cpu_ns(os.getpid()) - before
        await engine.call(lambda core: core.drop(0))
        if not isinstance(ended, Ended):
            raise SystemExit("the pool is too small")
        inside = {"engine_us": ended.decode_ms * 1e3 / (task.tokens - 1)}
        inside["loop_cpu_us"] = loop_ns / task.tokens / 1e3
        answer(decoded(times, ended.text) | inside)
    await engine.stop()


def _answer(document: Json) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    kind, model, threads, n_ctx, prompt, tokens = arguments
    text = Path(prompt).read_text(encoding="utf-8")
    task = Task(Path(model), int(threads), int(n_ctx), text, int(tokens))
    if kind == "engine":
        asyncio.run(engine_loop(task, _answer))
        return
    loop = BareLoop(task)
    _answer({"ready": True})
    while sys.stdin.readline():
        _answer(loop.run())


if __name__ == "__main__":
    main(sys.argv[1:])
