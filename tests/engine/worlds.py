"""One line of tokens in every kind of memory, evaluated once, with what was exported on the way."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sessiond.engine.codec import StateCodec
from sessiond.engine.context import Context, Payload
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.memory import Memory, MemoryKind, Tokens, as_tokens
from sessiond.engine.settings import ContextSettings

LINE, OTHER, MOVER, SPARE = range(4)
WINDOW = 32
BATCH = 32
TAIL = 8

FAKE_MEMORY: Mapping[str, Memory] = {
    "fake-attention": Memory(MemoryKind.ATTENTION),
    "fake-swa": Memory(MemoryKind.SWA, n_swa=16),
    "fake-recurrent": Memory(MemoryKind.RECURRENT),
    "fake-hybrid": Memory(MemoryKind.HYBRID),
    "fake-hybrid-window": Memory(MemoryKind.HYBRID, n_swa=16),
}
REAL = ("attention", "swa", "hybrid", "recurrent")
WORLDS = (*REAL, *FAKE_MEMORY)
RECURRENT = ("hybrid", "recurrent", "fake-recurrent", "fake-hybrid", "fake-hybrid-window")
WINDOW_ONLY = ("swa", "fake-swa")
WITH_SNAPSHOTS = (*WINDOW_ONLY, *RECURRENT)
WITH_BLOCKS = tuple(name for name in WORLDS if "recurrent" not in name)
REWINDABLE = tuple(name for name in WORLDS if name not in RECURRENT)


@dataclass(frozen=True, slots=True)
class Shape:
    """What may differ between two contexts that exchange state."""

    n_ctx: int = 1024
    n_seq_max: int = 4
    n_ubatch: int = BATCH


class Bench:
    """A context with its codec. LINE, OTHER and SPARE are free to use."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.codec = StateCodec(context, mover=MOVER, empty=MOVER)

    def feed(self, tokens: Tokens, start: int, seq: int = LINE) -> None:
        """Evaluate tokens[start:]."""
        step = self.context.n_batch
        for at in range(start, len(tokens), step):
            self.context.decode(tokens[at : at + step], at, seq, logits=False)

    def logits(self, tokens: Tokens, start: int, seq: int = LINE) -> np.ndarray:
        """Evaluate a chunk of TAIL tokens at `start`, then two single ones; their logits."""
        rows = []
        for at, stop in ((0, TAIL), (TAIL, TAIL + 1), (TAIL + 1, TAIL + 2)):
            chunk = tokens[start + at : start + stop]
            self.context.decode(chunk, start + at, seq, logits=True)
            rows.append(self.context.logits(-1).copy())
        return np.stack(rows)

    def whole(self, seq: int = LINE) -> bytes:
        return bytes(self.codec.export_whole(seq))


@dataclass(frozen=True)
class Record:
    """The line ends at `end`; `inside` lies in the middle of the last block.

    Neither has a window across the end of Gemma's window cache (256 cells): the same cells in
    another order are summed in another order, and a restore would be equal up to rounding only.
    """

    cuts: tuple[int, ...]
    inside: int
    blocks: tuple[Payload, ...]
    inside_snapshot: Payload | None
    inside_logits: np.ndarray
    snapshot: Payload | None
    whole: Payload
    end_logits: np.ndarray

    @property
    def end(self) -> int:
        return self.cuts[-1]


class World:
    """A memory kind. `open` makes a context; contexts live until `close`."""

    def __init__(self, name: str, memory: Memory, n_vocab: int, make: Callable[..., Context]):
        self.name = name
        self.memory = memory
        self._make = make
        self._contexts: list[Context] = []
        self.exact_forks = name.startswith("fake")
        self.tokens = as_tokens(np.random.default_rng(7).integers(3, n_vocab - 3, 600))

    def open(self, shape: Shape | None = None, **settings: Any) -> Bench:
        context = self._make(shape or Shape(), **settings)
        self._contexts.append(context)
        return Bench(context)

    def close_contexts(self) -> None:
        while self._contexts:
            self._contexts.pop().close()

    @cached_property
    def record(self) -> Record:
        bench = self.open()
        record = recorded(bench, self)
        if self.memory.n_swa and not self.memory.recurrent:
            assert bench.context.pos_min(LINE) > 0, "longer than the window cache"
        self.close_contexts()
        return record


def recorded(bench: Bench, world: World) -> Record:
    """Evaluate the line up to its end, with exports on the way and at the end."""
    tokens, codec, memory = world.tokens, bench.codec, world.memory
    cuts = (0, 96, 224, 320) if memory.n_swa else (0, 64, 128, 200)
    end, inside = cuts[-1], cuts[-1] - 24
    bench.feed(tokens[:inside], 0)
    inside_snapshot = codec.export_snapshot(LINE) if memory.needs_snapshot else None
    inside_logits = bench.logits(tokens, inside)
    bench.feed(tokens[:end], inside + TAIL + 2)
    spans = pairwise(cuts) if memory.has_blocks else ()
    blocks = tuple(codec.export_block(LINE, start, stop) for start, stop in spans)
    snapshot = codec.export_snapshot(LINE) if memory.needs_snapshot else None
    whole = codec.export_whole(LINE)
    end_logits = bench.logits(tokens, end)
    return Record(cuts, inside, blocks, inside_snapshot, inside_logits, snapshot, whole, end_logits)


def restore(bench: Bench, record: Record, position: int, seq: int = LINE) -> None:
    """Blocks and snapshot of the record into an empty sequence, up to its end or `inside`."""
    for block in record.blocks:
        bench.codec.import_block(block, seq, upto=position)
    snapshot = record.snapshot if position == record.end else record.inside_snapshot
    if snapshot is not None:
        bench.codec.import_snapshot(snapshot, seq, position)


def fake_world(name: str) -> World:
    model = FakeModel(FAKE_MEMORY[name])

    def make(shape: Shape) -> Context:
        return FakeContext(
            model, n_ctx=shape.n_ctx, n_seq_max=shape.n_seq_max, n_batch=shape.n_ubatch
        )

    return World(name, model.info.memory, 256, make)


def real_world(kind: str, path: Path) -> World:
    from sessiond.engine.llama import LlamaContext

    settings, model = _loaded(kind, path)

    def make(shape: Shape, **more: Any) -> Context:
        changed = replace(
            settings,
            n_ctx=shape.n_ctx,
            n_seq_max=shape.n_seq_max,
            n_batch=shape.n_ubatch,
            n_ubatch=shape.n_ubatch,
            extra={},
            **more,
        )
        return LlamaContext(model, changed)

    return World(kind, model.info.memory, model.info.n_vocab, make)


def _loaded(kind: str, path: Path) -> tuple[ContextSettings, Any]:
    """One thread: the tests run beside others. Gemma gets a window of 32 to keep lines short."""
    from sessiond.engine.llama import LlamaModel, start_backend

    start_backend()
    extra = {"kv_overrides": narrow_window()} if kind == "swa" else {}
    settings = ContextSettings(model=path, n_ctx=0, n_seq_max=0, threads=1, extra=extra)
    return settings, LlamaModel(settings)


def narrow_window() -> ctypes.Array[Any]:
    import llama_cpp.llama_cpp as llama

    overrides: ctypes.Array[Any] = (llama.llama_model_kv_override * 2)()
    overrides[0].key = b"gemma3.attention.sliding_window"
    overrides[0].tag = llama.LLAMA_KV_OVERRIDE_TYPE_INT
    overrides[0].value.val_i64 = WINDOW
    return overrides
