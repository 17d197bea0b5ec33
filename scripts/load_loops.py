"""Many streams at once, as a process: bare llama.cpp, sessiond's engine, or an HTTP client.

    python -m scripts.load_loops bare|engine MODEL THREADS N_CTX
    python -m scripts.load_loops client URL

Says `{"ready": true}` when it can begin. Each line on stdin is an order: a list of streams, as
`Stream` has them, that begin together. The answer has, for each stream, the seconds (monotonic,
the same for all processes) at which its tokens came. It sleeps in between. A client sends the key
that is in BENCH_API_KEY, if there is one.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import llama_cpp.llama_cpp as C
import numpy as np

from scripts.daemon import Json, events
from sessiond.engine.active import ActiveRun
from sessiond.engine.core import SPARES, EngineCore
from sessiond.engine.events import Delta, Event
from sessiond.engine.llama import LlamaContext, LlamaModel, start_backend
from sessiond.engine.memory import Tokens
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.engine.settings import ContextSettings
from sessiond.errors import SessiondError

KEY = "BENCH_API_KEY"
LINES = 8
N_BATCH = 512


@dataclass(frozen=True, slots=True)
class Stream:
    """`prompt` is read, then `tokens` are drawn greedily.

    `after` tokens of the first stream it begins; 0: at once. When `ends_all` has its first token,
    everything is over. Only a client uses `path`.
    """

    prompt: str
    tokens: int
    path: str = ""
    after: int = 0
    ends_all: bool = False


@dataclass(slots=True)
class Heard:
    """When a stream was begun, and when its tokens came."""

    began: float
    times: list[float]


class BareLoop:
    """What one would write by hand: one prompt after the other, then all lines together."""

    def __init__(self, model: Path, threads: int, n_ctx: int) -> None:
        C.llama_backend_init()
        self._silent = C.llama_log_callback(lambda level, text, data: None)
        C.llama_log_set(self._silent, None)
        loaded = C.llama_model_load_from_file(str(model).encode(), C.llama_model_default_params())
        self._vocab = C.llama_model_get_vocab(loaded)
        self._context = C.llama_init_from_model(loaded, _params(threads, n_ctx))
        self._memory = C.llama_get_memory(self._context)
        self._sampler = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        C.llama_sampler_chain_add(self._sampler, C.llama_sampler_init_greedy())
        self._batch = C.llama_batch_init(N_BATCH, 0, 1)
        self._tokens, self._positions, self._wanted = (
            np.ctypeslib.as_array(each, (N_BATCH,))
            for each in (self._batch.token, self._batch.pos, self._batch.logits)
        )
        np.ctypeslib.as_array(self._batch.n_seq_id, (N_BATCH,))[:] = 1
        self._piece = ctypes.create_string_buffer(64)

    def run(self, streams: Sequence[Stream]) -> list[Heard]:
        C.llama_memory_clear(self._memory, True)
        began = time.monotonic()
        prompts = [self._tokenized(stream.prompt) for stream in streams]
        heard = [Heard(began, []) for _ in streams]
        drawn = [self._prefill(seq, prompt) for seq, prompt in enumerate(prompts)]
        for each in heard:
            each.times.append(time.monotonic())
        for step in range(streams[0].tokens - 1):
            self._batch.n_tokens = len(drawn)
            for seq, token in enumerate(drawn):
                self._put(seq, token, len(prompts[seq]) + step, seq, logits=True)
            self._decode()
            drawn = [self._draw(row) for row in range(len(drawn))]
            now = time.monotonic()
            for each in heard:
                each.times.append(now)
        return heard

    def _prefill(self, seq: int, prompt: Tokens) -> int:
        for start in range(0, len(prompt), N_BATCH):
            chunk = prompt[start : start + N_BATCH]
            count = self._batch.n_tokens = len(chunk)
            self._tokens[:count] = chunk
            self._positions[:count] = np.arange(start, start + count)
            self._wanted[:count] = 0
            self._wanted[count - 1] = start + count == len(prompt)
            for row in range(count):
                self._batch.seq_id[row][0] = seq
            self._decode()
        return self._draw(-1)

    def _put(self, row: int, token: int, position: int, seq: int, *, logits: bool) -> None:
        self._tokens[row], self._positions[row], self._wanted[row] = token, position, logits
        self._batch.seq_id[row][0] = seq

    def _decode(self) -> None:
        if C.llama_decode(self._context, self._batch) != 0:
            raise SystemExit("llama_decode failed")

    def _draw(self, row: int) -> int:
        token = int(C.llama_sampler_sample(self._sampler, self._context, row))
        C.llama_token_to_piece(self._vocab, token, self._piece, 64, 0, False)
        return token

    def _tokenized(self, text: str) -> Tokens:
        raw = text.encode()
        tokens = np.empty(len(raw) + 8, np.int32)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(C.llama_token))
        count = C.llama_tokenize(self._vocab, raw, len(raw), pointer, len(tokens), True, False)
        return tokens[:count]


def _params(threads: int, n_ctx: int) -> Any:
    params = C.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, N_BATCH, N_BATCH
    params.n_threads = params.n_threads_batch = threads
    params.n_seq_max, params.kv_unified, params.swa_full = LINES, True, False
    params.flash_attn_type, params.no_perf = 1, True
    return params


class EngineLoop:
    """The engine's steps, without its thread, HTTP and sessions."""

    def __init__(self, model: Path, threads: int, n_ctx: int) -> None:
        settings = ContextSettings(model, n_ctx, LINES + SPARES, threads=threads)
        start_backend()
        loaded = LlamaModel(settings)
        self._core = EngineCore(loaded, LlamaContext(loaded, settings))

    def run(self, streams: Sequence[Stream]) -> list[Heard]:
        core, began = self._core, time.monotonic()
        heard = [Heard(began, []) for _ in streams]
        waiting = list(range(len(streams)))
        while waiting or core.busy:
            due = [n for n in waiting if len(heard[0].times) >= streams[n].after]
            for number in due:
                heard[number].began = time.monotonic()
                self._start(number, streams[number], heard[number])
            waiting = [n for n in waiting if n not in due]
            core.step()
            if any(s.ends_all and h.times for s, h in zip(streams, heard, strict=True)):
                core.cancel_all()
        for sequence in range(len(streams)):
            core.drop(sequence)
        return heard

    def _start(self, seq: int, stream: Stream, heard: Heard) -> ActiveRun:
        def emit(event: Event | SessiondError) -> None:
            if isinstance(event, Delta) and event.tokens:
                heard.times.append(time.monotonic())
            elif isinstance(event, SessiondError):
                raise event

        prompt = self._core.model.tokenize(stream.prompt, add_special=True, parse_special=False)
        ending = Ending(max_tokens=stream.tokens, ignore_eos=True)
        limit = self._core.context.n_ctx
        return self._core.start(Run(seq, prompt, 0, limit, Sampling(temperature=0), ending), emit)


class HttpClient:
    """Reads bytes only, a thread for each stream, so that it costs little; parses afterwards."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        if parts.scheme not in kinds or not parts.hostname:
            raise SystemExit(f"{url!r} is no address of a server.")
        self._kind, self._host = kinds[parts.scheme], parts.netloc.rpartition("@")[2]
        self._front = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def run(self, streams: Sequence[Stream]) -> list[Heard]:
        chunks: list[list[tuple[float, bytes]]] = [[] for _ in streams]
        heard = [Heard(0.0, []) for _ in streams]
        over, first_over = threading.Event(), threading.Event()
        failures: list[str] = []

        def follow(number: int) -> None:
            stream = streams[number]
            while len(chunks[0]) < stream.after and not first_over.is_set():
                time.sleep(0.002)
            heard[number].began = time.monotonic()
            try:
                for chunk in self._stream(stream, over):
                    chunks[number].append((time.monotonic(), chunk))
                    if stream.ends_all and b'"text"' in chunk:
                        over.set()
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{self._host}, {stream.path}: {error!r}")
            if number == 0:
                first_over.set()

        threads = [threading.Thread(target=follow, args=(n,)) for n in range(len(streams))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise SystemExit(failures[0])
        for number, each in enumerate(heard):
            each.times += _token_times(chunks[number])
        return heard

    def _stream(self, stream: Stream, over: threading.Event) -> Iterator[bytes]:
        body = {"model": "any", "prompt": stream.prompt, "max_tokens": stream.tokens}
        body |= {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": True}
        peer = self._kind(self._host)
        peer.request("POST", self._front + stream.path, json.dumps(body), self._headers)
        answer = peer.getresponse()
        if answer.status != 200:
            told = answer.read().decode(errors="replace")
            raise http.client.HTTPException(f"{answer.status} {told}")
        while not over.is_set() and (chunk := answer.read1()):
            yield chunk
        peer.close()


def _token_times(chunks: Sequence[tuple[float, bytes]]) -> list[float]:
    """A token without whole characters is not told; of a stream that told none, its end counts."""
    times: list[float] = []
    ends: list[float] = []
    rest = b""
    for at, chunk in chunks:
        whole, _, rest = (rest + chunk).rpartition(b"\n\n")
        for event in events([whole + b"\n"]):
            if "error" in event:
                raise SystemExit(f"The stream broke off: {event['error']}")
            choices = event.get("choices", ())
            times += [at for choice in choices if choice.get("text")]
            ends += [at for choice in choices if choice.get("finish_reason")]
    return times or ends


def serve(run: Callable[[Sequence[Stream]], list[Heard]]) -> None:
    """Orders in, answers out, until stdin ends."""
    _answer({"ready": True})
    while line := sys.stdin.readline():
        streams = [Stream(**fields) for fields in json.loads(line)]
        _answer({"streams": [asdict(heard) for heard in run(streams)]})


def _answer(document: Json) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    kind, *rest = arguments
    if kind == "client":
        serve(HttpClient(rest[0], os.environ.get(KEY, "")).run)
        return
    loop = (BareLoop if kind == "bare" else EngineLoop)(Path(rest[0]), int(rest[1]), int(rest[2]))
    serve(loop.run)


if __name__ == "__main__":
    main(sys.argv[1:])
