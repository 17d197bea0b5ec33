"""What `cuda_check` measures: draining, saving and restoring, and what a running stream feels.

All of it runs on any backend; what needs CUDA says so. The recurrent state is small, a snapshot is
not: the model should be a hybrid whose snapshot has the size of interest.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt

from scripts.results import Spread, spread
from sessiond.engine.codec import StateCodec
from sessiond.engine.context import BatchRow, Payload
from sessiond.engine.host_memory import MemoryLock
from sessiond.engine.llama import LlamaContext, LlamaModel, start_backend
from sessiond.engine.memory import as_tokens
from sessiond.engine.settings import ContextSettings
from sessiond.engine.staging import Staging

LINE, OTHER, THIRD, FOURTH, RESTORED, SPARE, MOVER, EMPTY = range(8)
TALKING = (LINE, OTHER, THIRD, FOURTH)
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Size:
    """`fragments` tokens of four lines decoded in turns, `stream` tokens for each kind of gap.

    `block` in tokens; `threads` 0: the physical cores.
    """

    prompt: int = 2048
    fragments: int = 512
    block: int = 256
    stream: int = 64
    rounds: int = 12
    n_ctx: int = 8192
    threads: int = 0

    def spans(self, end: int) -> list[tuple[int, int]]:
        """Positions of the blocks of `end` tokens."""
        return [(at, min(at + self.block, end)) for at in range(0, end, self.block)]


TINY = Size(prompt=40, fragments=40, block=16, stream=4, rounds=2, n_ctx=1024, threads=1)


@dataclass(frozen=True, slots=True)
class Pinned:
    """`cuda` is what the CUDA runtime says of the pointer, "" where there is none."""

    kind: str
    detail: str
    cuda: str

    @property
    def really(self) -> bool:
        return self.kind == MemoryLock.DEVICE and self.cuda == "host"


@dataclass(frozen=True, slots=True)
class Drains:
    """Milliseconds to drain a frozen snapshot of `bytes`, by where to; the context was idle.

    `queued_ms` waits for a prefill chunk that was just submitted, too.
    """

    bytes: int
    staging_ms: Spread
    touched_ms: Spread
    fresh_ms: Spread
    queued_ms: Spread


@dataclass(frozen=True, slots=True)
class Moves:
    """Milliseconds for each block, and for the snapshot. `difference` of logits is relative.

    The cells lie between those of three other lines; half of those are gone before the restore.
    """

    block_bytes: int
    export_block_ms: Spread
    import_block_ms: Spread
    import_snapshot_ms: float
    bytes_equal: bool
    difference: float


@dataclass(frozen=True, slots=True)
class Gaps:
    """Milliseconds between two tokens of a stream, with nothing, a capture, or a restore between.

    A capture is freeze and drain; a restore is one block and a snapshot, into another line.
    """

    alone: Spread
    capture: Spread
    restore: Spread


class Bench:
    """A model with one context and the two staging buffers."""

    def __init__(self, model: Path, size: Size) -> None:
        start_backend()
        settings = ContextSettings(model, size.n_ctx, n_seq_max=8, threads=size.threads)
        self.model = LlamaModel(settings)
        self.context = LlamaContext(self.model, settings)
        self.codec = StateCodec(self.context, mover=MOVER, empty=EMPTY)
        self.size = size
        vocabulary = self.model.info.n_vocab
        self.tokens = as_tokens(np.random.default_rng(1).integers(10, vocabulary - 10, 4096))
        self.feed(LINE, 8)
        self.snapshot_bytes = self.context.state_size(LINE, partial=True)
        self.context.clear()
        self.staging = Staging.open(self.snapshot_bytes, self.snapshot_bytes)

    def close(self) -> None:
        self.staging.close()
        self.context.close()
        self.model.close()

    def feed(self, seq: int, stop: int, start: int = 0) -> None:
        """Evaluate tokens [start, stop) of the text, without logits."""
        for at in range(start, stop, self.context.n_batch):
            chunk = self.tokens[at : min(stop, at + self.context.n_batch)]
            self.context.decode(chunk, at, seq, logits=False)

    def logits(self, seq: int, start: int) -> Logits:
        """Those after a chunk of eight tokens, then after each of two single ones."""
        rows = []
        for at, stop in ((0, 8), (8, 9), (9, 10)):
            chunk = self.tokens[start + at : start + stop]
            self.context.decode(chunk, start + at, seq, logits=True)
            rows.append(self.context.logits(-1).copy())
        return np.stack(rows)

    def wait(self) -> None:
        C.llama_synchronize(self.context._handle)

    def drain_into(self, target: memoryview, seq: int = SPARE) -> None:
        """Like StateCodec.drain, into memory that is there already."""
        size = len(target)
        address = (ctypes.c_uint8 * size).from_buffer(target)
        written = C.llama_state_seq_get_data_ext(self.context._handle, address, size, seq, 1)
        self.context.seq_rm(seq, -1, -1)
        if written != size:
            raise RuntimeError(f"llama.cpp exported {written} of {size} bytes")

    def capture(self) -> None:
        """Freeze LINE and drain it into a staging buffer."""
        self.codec.freeze(LINE, SPARE, self.context.pos_max(LINE) + 1)
        buffer = self.staging.take(self.snapshot_bytes)
        if buffer is None:
            raise RuntimeError("no staging buffer is free")
        self.drain_into(buffer.view)
        buffer.release()


def pinned(bench: Bench) -> Pinned:
    buffer = bench.staging.take(1)
    if buffer is None:
        raise RuntimeError("no staging buffer is free")
    address = ctypes.addressof(ctypes.c_uint8.from_buffer(buffer.view))
    told = _cuda_says(address)
    buffer.release()
    return Pinned(str(bench.staging.kind), bench.staging.detail, told)


def drains(bench: Bench) -> Drains:
    size, context = bench.snapshot_bytes, bench.context
    touched = np.ones(size, np.uint8).data
    buffer = bench.staging.take(size)
    if buffer is None:
        raise RuntimeError("no staging buffer is free")
    targets: dict[str, Callable[[], memoryview]] = {
        "staging": lambda: buffer.view,
        "touched": lambda: touched,
        "fresh": lambda: np.empty(size, np.uint8).data,
    }
    times: dict[str, list[float]] = {name: [] for name in (*targets, "queued")}
    context.clear()
    bench.feed(LINE, bench.size.prompt)
    for _ in range(bench.size.rounds):
        for name, target in targets.items():
            _freeze_after(bench, 8)
            bench.wait()
            times[name].append(_timed(bench.drain_into, target()))
        _freeze_after(bench, context.n_batch)
        times["queued"].append(_timed(bench.drain_into, buffer.view))
    buffer.release()
    found = {name: spread(values[1:] or values) for name, values in times.items()}
    return Drains(size, found["staging"], found["touched"], found["fresh"], found["queued"])


def _freeze_after(bench: Bench, count: int) -> None:
    """Evaluate so many tokens more, and freeze the line there; it starts anew where it is full."""
    at = bench.context.pos_max(LINE) + 1
    if at + count > min(len(bench.tokens), bench.size.n_ctx):
        bench.context.clear()
        at = 0
    bench.feed(LINE, at + count, at)
    bench.codec.freeze(LINE, SPARE, at + count)


def moves(bench: Bench) -> Moves:
    """Save and restore of one of four lines that were decoded together."""
    context, codec, end = bench.context, bench.codec, bench.size.fragments
    saved: list[Payload] = []

    def save(start: int, stop: int) -> None:
        saved.append(codec.export_block(LINE, start, stop))

    def restore(block: Payload, stop: int) -> None:
        codec.import_block(block, RESTORED, upto=stop)

    context.clear()
    for at in range(end):
        token = int(bench.tokens[at])
        context.decode_rows([BatchRow(token, at, seq, False) for seq in TALKING])
    spans = bench.size.spans(end)
    saving = [_timed(save, *span) for span in spans]
    snapshot = codec.export_snapshot(LINE)
    for seq in (OTHER, FOURTH):
        context.seq_rm(seq, -1, -1)
    loading = [_timed(restore, block, stop) for block, (_, stop) in zip(saved, spans, strict=True)]
    landing = _timed(codec.import_snapshot, snapshot, RESTORED, end)
    again = [codec.export_block(RESTORED, *span) for span in spans]
    equal = all(bytes(one) == bytes(two) for one, two in zip(saved, again, strict=True))
    expected, found = bench.logits(LINE, end), bench.logits(RESTORED, end)
    return Moves(
        block_bytes=max(map(len, saved)),
        export_block_ms=spread(saving),
        import_block_ms=spread(loading),
        import_snapshot_ms=landing,
        bytes_equal=equal,
        difference=float(np.abs(expected - found).max() / np.abs(expected).max()),
    )


def bit_equality(bench: Bench) -> bool:
    """Whether a line restored into an empty context goes on with the logits it would have had."""
    context, codec, end = bench.context, bench.codec, bench.size.prompt
    context.clear()
    bench.feed(LINE, end)
    spans = bench.size.spans(end)
    blocks: list[Payload] = [codec.export_block(LINE, *span) for span in spans]
    snapshot = codec.export_snapshot(LINE)
    expected = bench.logits(LINE, end)
    context.clear()
    for block, (_, stop) in zip(blocks, spans, strict=True):
        codec.import_block(block, LINE, upto=stop)
    codec.import_snapshot(snapshot, LINE, end)
    return bool(np.array_equal(expected, bench.logits(LINE, end)))


def gaps(bench: Bench) -> Gaps:
    context, codec, end = bench.context, bench.codec, bench.size.prompt
    context.clear()
    bench.feed(LINE, end)
    span = bench.size.spans(end)[0]
    block = codec.export_block(LINE, *span)
    snapshot = codec.export_snapshot(LINE)

    def restore() -> None:
        context.seq_rm(RESTORED, -1, -1)
        codec.import_block(block, RESTORED, upto=span[1])
        if not context.set_state(RESTORED, snapshot, partial=True):
            raise RuntimeError("llama.cpp did not accept a snapshot")

    stream = _Stream(bench, end)
    stream.gaps(bench.size.stream, _nothing)
    alone = stream.gaps(bench.size.stream, _nothing)
    capture = stream.gaps(bench.size.stream, bench.capture)
    return Gaps(spread(alone), spread(capture), spread(stream.gaps(bench.size.stream, restore)))


class _Stream:
    """A greedy stream on LINE; between two tokens something else may happen."""

    def __init__(self, bench: Bench, position: int) -> None:
        self._context = bench.context
        self._position = position
        self._token = int(bench.tokens[position])

    def gaps(self, count: int, between: Callable[[], None]) -> list[float]:
        """Milliseconds from token to token, `between` included."""
        return [_timed(self._step, between) for _ in range(count)]

    def _step(self, between: Callable[[], None]) -> None:
        between()
        self._context.decode_rows([BatchRow(self._token, self._position, LINE, True)])
        self._token = int(self._context.logits(0).argmax())
        self._position += 1


def _nothing() -> None:
    pass


def _timed(work: Callable[..., object], *given: object) -> float:
    began = time.perf_counter()
    work(*given)
    return (time.perf_counter() - began) * 1e3


def _cuda_says(address: int) -> str:
    """What kind of memory an address is to the CUDA runtime that llama.cpp loaded."""
    path = next(_loaded("libcudart"), None)
    if path is None:
        return ""
    attributes = (ctypes.c_int * 64)()
    code = ctypes.CDLL(path).cudaPointerGetAttributes(attributes, ctypes.c_void_p(address))
    kinds = ("unregistered", "host", "device", "managed")
    return kinds[attributes[0]] if code == 0 else f"error {code}"


def _loaded(library: str) -> Iterator[str]:
    """Paths of the shared libraries of that name in this process."""
    maps = Path("/proc/self/maps")
    if maps.is_file():
        yield from re.findall(rf"\S+/{library}[^/\s]*$", maps.read_text(), re.MULTILINE)
