"""llama.cpp through the low-level API of llama-cpp-python: one model, one unified context."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt
import psutil

from sessiond.engine.context import BatchRow, ModelInfo, Payload
from sessiond.engine.memory import Memory, MemoryKind, Tokens
from sessiond.engine.sampler import ChainSampler
from sessiond.engine.sampling import Sampling
from sessiond.engine.settings import KV_TYPES, ContextSettings
from sessiond.errors import ConfigError, DecodeFailed, EngineError, PoolFull

logger = logging.getLogger(__name__)
_PARTIAL = 1
_GGML_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


@C.llama_log_callback  # type: ignore[untyped-decorator]
def _forward_log(level: int, text: bytes, _user: object) -> None:
    severity = _GGML_LEVELS.get(level, logging.DEBUG)
    if logger.isEnabledFor(severity):
        logger.log(severity, "%s", text.decode(errors="replace").rstrip())


@cache
def start_backend() -> None:
    """Initialise llama.cpp, once per process, and send its messages to `logging`."""
    C.llama_log_set(_forward_log, None)
    C.llama_backend_init()


def library_files() -> list[Path]:
    """The shared libraries whose code decides what a saved state means."""
    return sorted(
        path
        for path in (Path(C.__file__).parent / "lib").iterdir()
        if path.name.startswith(("libllama", "libggml", "llama", "ggml")) and not path.is_symlink()
    )


class LlamaModel:
    """A loaded GGUF. Vocabulary calls are safe from any thread; after `close` they raise
    EngineError, and what is under way then is waited for by the memory, not by the caller.
    """

    def __init__(
        self, settings: ContextSettings, progress: Callable[[float], None] | None = None
    ) -> None:
        """Blocks until loaded; `progress` gets 0.0-1.0. Raises ConfigError if that fails."""
        params = C.llama_model_default_params()
        params.n_gpu_layers = settings.n_gpu_layers
        self._on_progress = C.llama_progress_callback(_reporter(progress))
        params.progress_callback = self._on_progress
        self._kept = _apply(params, settings.extra)
        self._gate, self._holds = Lock(), 1
        self._closed = False
        handle = C.llama_model_load_from_file(str(settings.model).encode(), params)
        if not handle:
            raise ConfigError(
                f"llama.cpp cannot load {settings.model}.",
                hint="Is it a complete GGUF of an architecture this llama.cpp knows?",
                param="model.path",
            )
        self.handle = handle
        self.vocab = C.llama_model_get_vocab(handle)
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._info = self._read_info(settings.model)

    @property
    def info(self) -> ModelInfo:
        return self._info

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        raw = text.encode()
        capacity = len(raw) + 8
        while True:
            buffer = (C.llama_token * capacity)()
            with self._open():
                count = C.llama_tokenize(
                    self.vocab, raw, len(raw), buffer, capacity, add_special, parse_special
                )
            if count >= 0:
                return np.frombuffer(buffer, dtype=np.int32, count=count).copy()
            capacity = -count

    def piece(self, token: int, *, special: bool = False) -> bytes:
        cached = self._pieces.get((token, special))
        if cached is None:
            cached = self._pieces[(token, special)] = self._read_piece(token, special)
        return cached

    def ends_generation(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self.vocab, token))

    def close(self) -> None:
        self._closed = True
        self._let_go()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """The vocabulary is there inside. Raises EngineError."""
        with self._gate:
            if self._closed:
                raise EngineError("The model has left memory.")
            self._holds += 1
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._gate:
            self._holds -= 1
            last = not self._holds
        if last:
            C.llama_model_free(self.handle)

    def _read_piece(self, token: int, special: bool) -> bytes:
        capacity = 64
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            with self._open():
                count = C.llama_token_to_piece(self.vocab, token, buffer, capacity, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            capacity = -count

    def _token_text(self, token: int) -> str:
        return self.piece(token, special=True).decode(errors="replace") if token >= 0 else ""

    def _meta(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        found = C.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if found >= 0 else ""

    def _read_info(self, path: Path) -> ModelInfo:
        template = C.llama_model_chat_template(self.handle, None)
        architecture = self._meta("general.architecture")
        return ModelInfo(
            name=path.stem,
            architecture=architecture,
            memory=Memory(self._memory_kind(), max(0, C.llama_model_n_swa(self.handle))),
            n_ctx_train=C.llama_model_n_ctx_train(self.handle),
            n_ctx_orig=int(self._meta(f"{architecture}.rope.scaling.original_context_length") or 0),
            n_vocab=C.llama_vocab_n_tokens(self.vocab),
            n_params=C.llama_model_n_params(self.handle),
            size_bytes=C.llama_model_size(self.handle),
            chat_template=template.decode(errors="replace") if template else None,
            bos=self._token_text(C.llama_vocab_bos(self.vocab)),
            eos=self._token_text(C.llama_vocab_eos(self.vocab)),
            adds_bos=bool(C.llama_vocab_get_add_bos(self.vocab)),
            tokenizer=self._vocabulary_digest(),
        )

    def _memory_kind(self) -> MemoryKind:
        if C.llama_model_is_recurrent(self.handle):
            return MemoryKind.RECURRENT
        if C.llama_model_is_hybrid(self.handle):
            return MemoryKind.HYBRID
        return MemoryKind.SWA if C.llama_model_n_swa(self.handle) > 0 else MemoryKind.ATTENTION

    def _vocabulary_digest(self) -> str:
        digest = hashlib.sha256(
            f"{C.llama_vocab_type(self.vocab)} {self._meta('tokenizer.ggml.pre')} "
            f"{C.llama_vocab_get_add_bos(self.vocab)}".encode()
        )
        for token in range(C.llama_vocab_n_tokens(self.vocab)):
            digest.update(C.llama_vocab_get_text(self.vocab, token) + b"\0")
        return digest.hexdigest()


class LlamaContext:
    """One context whose sequences share one pool of cells. Engine thread only."""

    def __init__(self, model: LlamaModel, settings: ContextSettings) -> None:
        """Raises ConfigError for settings llama.cpp refuses, EngineError when memory is short."""
        if settings.type_v not in ("f32", "f16", "bf16") and not settings.flash_attn:
            raise ConfigError(
                f"type_v {settings.type_v} needs flash attention.",
                hint='Set flash_attn = true or type_v = "f16".',
                param="model.type_v",
            )
        self._model = model
        self._params = _context_params(settings)
        self._kept = _apply(self._params, settings.extra)
        handle = C.llama_init_from_model(model.handle, self._params)
        if not handle:
            raise EngineError(
                f"llama.cpp cannot create a context of {settings.n_ctx} tokens.",
                hint="Set a smaller model.n_ctx or sessions.max_active.",
                param="model.n_ctx",
            )
        self._handle = handle
        self._memory = C.llama_get_memory(handle)
        self._n_ctx = int(C.llama_n_ctx(handle))
        self._n_batch = int(C.llama_n_batch(handle))
        self._batch = _Batch(self._n_batch)

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_seq_max(self) -> int:
        return int(self._params.n_seq_max)

    @property
    def n_batch(self) -> int:
        return self._n_batch

    @property
    def memory(self) -> Memory:
        return self._model.info.memory

    def decode(self, tokens: Tokens, start: int, seq: int, *, logits: bool) -> None:
        self._decode(self._batch.one_sequence(tokens, start, seq, logits))

    def decode_rows(self, rows: Sequence[BatchRow]) -> None:
        self._decode(self._batch.rows(rows))

    def synchronize(self) -> None:
        C.llama_synchronize(self._handle)

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        pointer = C.llama_get_logits_ith(self._handle, row)
        return np.ctypeslib.as_array(pointer, (self._model.info.n_vocab,))

    def sampler(self, sampling: Sampling, history: Tokens) -> ChainSampler:
        return ChainSampler(self._handle, self._model.vocab, sampling, history)

    def seq_rm(self, seq: int, start: int, stop: int) -> bool:
        return bool(C.llama_memory_seq_rm(self._memory, seq, start, stop))

    def seq_cp(self, source: int, target: int, start: int, stop: int) -> None:
        C.llama_memory_seq_cp(self._memory, source, target, start, stop)

    def pos_min(self, seq: int) -> int:
        return int(C.llama_memory_seq_pos_min(self._memory, seq))

    def pos_max(self, seq: int) -> int:
        return int(C.llama_memory_seq_pos_max(self._memory, seq))

    def state_size(self, seq: int, *, partial: bool) -> int:
        return int(C.llama_state_seq_get_size_ext(self._handle, seq, _PARTIAL if partial else 0))

    def get_state(self, seq: int, *, partial: bool) -> Payload:
        buffer = np.empty(self.state_size(seq, partial=partial), dtype=np.uint8)
        self._export(seq, buffer, partial=partial)
        return buffer.data

    def copy_snapshot(self, seq: int, into: Payload) -> None:
        self._export(seq, np.frombuffer(into, dtype=np.uint8), partial=True)

    def _export(self, seq: int, buffer: npt.NDArray[np.uint8], *, partial: bool) -> None:
        size = len(buffer)
        written = C.llama_state_seq_get_data_ext(
            self._handle, _pointer(buffer), size, seq, _PARTIAL if partial else 0
        )
        if written != size:
            raise EngineError(f"llama.cpp exported {written} of {size} bytes of sequence {seq}.")

    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool:
        data = np.frombuffer(payload, dtype=np.uint8)
        read = C.llama_state_seq_set_data_ext(
            self._handle, _pointer(data), len(data), seq, _PARTIAL if partial else 0
        )
        return bool(read == len(data) > 0)

    def clear(self) -> None:
        C.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        C.llama_free(self._handle)

    def _decode(self, batch: Any) -> None:
        code = C.llama_decode(self._handle, batch)
        if code == 1:
            raise PoolFull("The context has no free cells.")
        if code != 0:
            raise DecodeFailed(f"llama_decode returned {code}.")


class _Batch:
    """A llama_batch over numpy buffers that are filled in place, one sequence id per row."""

    def __init__(self, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._seq_count = np.ones(capacity, np.int32)
        self._wants_logits = np.zeros(capacity, np.int8)
        self._offsets = np.arange(capacity, dtype=np.int32)
        base = self._seq.ctypes.data
        rows = (ctypes.POINTER(C.llama_seq_id) * (capacity + 1))()
        for row in range(capacity):
            rows[row] = ctypes.cast(base + 4 * row, ctypes.POINTER(C.llama_seq_id))
        self._rows = rows
        self._struct = C.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(ctypes.POINTER(C.llama_token)),
            embd=None,
            pos=self._position.ctypes.data_as(ctypes.POINTER(C.llama_pos)),
            n_seq_id=self._seq_count.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=ctypes.cast(rows, ctypes.POINTER(ctypes.POINTER(C.llama_seq_id))),
            logits=self._wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def one_sequence(self, tokens: Tokens, start: int, seq: int, logits: bool) -> Any:
        n = len(tokens)
        self._token[:n] = tokens
        np.add(self._offsets[:n], start, out=self._position[:n])
        self._seq[:n] = seq
        self._wants_logits[:n] = 0
        self._wants_logits[n - 1] = logits
        self._struct.n_tokens = n
        return self._struct

    def rows(self, rows: Sequence[BatchRow]) -> Any:
        for index, row in enumerate(rows):
            self._token[index] = row.token
            self._position[index] = row.position
            self._seq[index] = row.seq
            self._wants_logits[index] = row.wants_logits
        self._struct.n_tokens = len(rows)
        return self._struct


def _pointer(buffer: npt.NDArray[np.uint8]) -> Any:
    return buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _reporter(progress: Callable[[float], None] | None) -> Callable[[float, object], bool]:
    def report(share: float, _user: object) -> bool:
        if progress:
            progress(share)
        return True

    return report


def physical_cores() -> int:
    """Cores this process may use, hyperthreads counted once."""
    allowed = len(psutil.Process().cpu_affinity() or [1])
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def _context_params(settings: ContextSettings) -> Any:
    params = C.llama_context_default_params()
    threads = settings.threads or physical_cores()
    params.n_ctx, params.n_seq_max = settings.n_ctx, settings.n_seq_max
    params.n_batch = max(settings.n_batch, settings.n_seq_max)  # a row for every sequence
    params.n_ubatch = settings.n_ubatch
    params.n_threads = params.n_threads_batch = threads
    params.type_k, params.type_v = KV_TYPES[settings.type_k], KV_TYPES[settings.type_v]
    params.flash_attn_type = int(settings.flash_attn)
    params.kv_unified, params.swa_full, params.n_rs_seq = True, False, 0
    params.no_perf = True
    return params


_FIXED = frozenset(
    {"kv_unified", "swa_full", "n_rs_seq", "n_seq_max", "ctx_type", "embeddings", "vocab_only"}
)
_OWN_KEYS = {
    name: f"model.{name}"
    for name in ("n_ctx", "n_batch", "n_ubatch", "n_gpu_layers", "type_k", "type_v")
} | {"n_threads": "model.threads", "flash_attn_type": "model.flash_attn"}


def _apply(params: Any, extra: Mapping[str, object]) -> list[object]:
    """Set the `[model.extra]` values this struct knows; returns what must stay referenced.

    Raises ConfigError for a value of the wrong type or a setting sessiond depends on.
    """
    kept: list[object] = []
    known = {name: kind for name, kind in params._fields_}
    for name, value in extra.items():
        _refuse_fixed(name)
        if name not in known:
            continue
        try:
            if name == "tensor_split" and isinstance(value, (list, tuple)):
                value = (ctypes.c_float * 128)(*value)
            setattr(params, name, value)
        except (TypeError, ValueError, IndexError) as error:
            raise ConfigError(
                f"model.extra.{name} = {value!r}: {error}.", param=f"model.extra.{name}"
            ) from error
        kept.append(value)
    return kept


def _refuse_fixed(name: str) -> None:
    param = f"model.extra.{name}"
    if name in _FIXED:
        raise ConfigError(f"{param} is fixed by sessiond.", hint="Remove it.", param=param)
    if name in _OWN_KEYS:
        raise ConfigError(
            f"{param} has a key of its own.", hint=f"Set {_OWN_KEYS[name]}.", param=param
        )


def known_extra(name: str) -> bool:
    """Whether `[model.extra]` may hold this key."""
    return name in {
        field
        for struct in (C.llama_model_params, C.llama_context_params)
        for field, _ in struct._fields_
    }
