"""A model and a context without llama.cpp: deterministic tokens, byte-string state, all kinds.

What it answers depends on all the state a sequence holds: every cell, the window, the recurrent
state. A missing, foreign or stale part changes the reply, so a wrong restore shows itself. It
follows llama.cpp where it matters: `seq_cp` ignores the range on recurrent memory, `seq_rm` of a
recurrent tail fails without change, importing cells clears the recurrent state, cells of a window
are bounded, and a refused state leaves the sequence empty.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sessiond.engine.context import BatchRow, ModelInfo, Payload
from sessiond.engine.memory import Memory, MemoryKind, Tokens, as_tokens
from sessiond.engine.sampling import Sampling
from sessiond.errors import EngineError, PoolFull

BOS, START, END = 256, 257, 258
N_VOCAB = 259
_SPECIAL = {"<s>": BOS, "<|im_start|>": START, "<|im_end|>": END}
_MASK = (1 << 61) - 1
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _mix(*values: int) -> int:
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ (value + 1)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & _MASK


def _tokens(text: str, special: Mapping[str, int]) -> list[int]:
    if not special:
        return list(text.encode())
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    return [
        token for part in parts for token in ([special[part]] if part in special else part.encode())
    ]


class FakeModel:
    """Tokens are bytes, three special ones, and those of `control`, which is not printed either.

    `replies` are said before anything is made up.
    """

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        n_ctx_train: int = 1 << 20,
        replies: Iterable[str] = (),
        name: str = "fake",
        chat_template: str | None = CHATML,
        control: Sequence[str] = (),
    ) -> None:
        self.replies = deque(replies)
        self._control = {text: N_VOCAB + number for number, text in enumerate(control)}
        self._special = {**_SPECIAL, **self._control}
        self._names = {token: text.encode() for text, token in self._special.items()}
        self._info = ModelInfo(
            name=name,
            architecture="fake",
            memory=memory or Memory(MemoryKind.ATTENTION),
            n_ctx_train=n_ctx_train,
            n_ctx_orig=0,
            n_vocab=N_VOCAB + len(self._control),
            n_params=0,
            size_bytes=0,
            chat_template=chat_template,
            bos="<s>",
            eos="<|im_end|>",
            adds_bos=False,
            tokenizer="bytes",
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        return as_tokens(_tokens(text, self._special if parse_special else {}))

    def script(self, reply: str) -> list[int]:
        """Its tokens: only control tokens are no letters in it."""
        return _tokens(reply, self._control)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < BOS:
            return bytes([token])
        return self._names[token] if special else b""

    def ends_generation(self, token: int) -> bool:
        return token == END


@dataclass(slots=True)
class _Sequence:
    """`cells` and `window` map positions to values; `state` is (last position, value)."""

    cells: dict[int, int] = field(default_factory=dict)
    window: dict[int, int] = field(default_factory=dict)
    state: tuple[int, int] | None = None


class FakeSampler:
    def __init__(self, context: FakeContext, script: list[int] | None) -> None:
        self._context = context
        self._script = deque(script) if script is not None else None

    def sample(self, row: int) -> int:
        if self._script is None:
            return int(self._context.logits(row).argmax())
        return self._script.popleft() if self._script else END

    def close(self) -> None:
        pass


class FakeContext:
    """Engine thread only, like the real one."""

    def __init__(
        self, model: FakeModel, *, n_ctx: int = 1 << 16, n_seq_max: int = 8, n_batch: int = 64
    ) -> None:
        self._model = model
        self._n_ctx, self._n_seq_max, self._n_batch = n_ctx, n_seq_max, n_batch
        self._sequences = [_Sequence() for _ in range(n_seq_max)]
        self._rows: list[int] = []
        self.evaluated = 0

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_seq_max(self) -> int:
        return self._n_seq_max

    @property
    def n_batch(self) -> int:
        return self._n_batch

    @property
    def memory(self) -> Memory:
        return self._model.info.memory

    def decode(self, tokens: Tokens, start: int, seq: int, *, logits: bool) -> None:
        last = len(tokens) - 1
        if len(tokens) > self._n_batch:
            raise AssertionError(f"{len(tokens)} tokens in a batch of {self._n_batch}")
        self.decode_rows(
            [
                BatchRow(int(token), start + index, seq, logits and index == last)
                for index, token in enumerate(tokens)
            ]
        )

    def decode_rows(self, rows: Sequence[BatchRow]) -> None:
        if self._is_full(len(rows)):
            raise PoolFull("The context has no free cells.")
        self._rows = [self._evaluate(row) for row in rows]
        self.evaluated += len(rows)

    def synchronize(self) -> None:
        """Everything is computed at once here."""

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        state = self._rows[row]
        generator = np.random.default_rng(state)
        logits = generator.standard_normal(self._model.info.n_vocab).astype(np.float32)
        token = END if state % 24 == 0 else 97 + state % 26
        logits[token] = 10.0
        return logits

    def sampler(self, sampling: Sampling, history: Tokens) -> FakeSampler:
        model = self._model
        return FakeSampler(self, model.script(model.replies.popleft()) if model.replies else None)

    def seq_rm(self, seq: int, start: int, stop: int) -> bool:
        sequence, first = self._sequences[seq], max(start, 0)
        if self.memory.recurrent and sequence.state is not None:
            position = sequence.state[0]
            if 0 < first <= position:
                return False
            if first == 0:
                sequence.state = None
        for cells in (sequence.cells, sequence.window):
            for position in [at for at in cells if at >= first and (stop < 0 or at < stop)]:
                del cells[position]
        return True

    def seq_cp(self, source: int, target: int, start: int, stop: int) -> None:
        one, other = self._sequences[source], self._sequences[target]
        for cells, copied in ((one.cells, other.cells), (one.window, other.window)):
            copied.update(
                {at: v for at, v in cells.items() if at >= start and (stop < 0 or at < stop)}
            )
        if self.memory.recurrent:
            other.state = one.state

    def pos_min(self, seq: int) -> int:
        return max(min(positions, default=-1) for positions in self._positions(seq))

    def pos_max(self, seq: int) -> int:
        return min(max(positions, default=-1) for positions in self._positions(seq))

    def state_size(self, seq: int, *, partial: bool) -> int:
        return len(self.get_state(seq, partial=partial))

    def get_state(self, seq: int, *, partial: bool) -> Payload:
        sequence = self._sequences[seq]
        tail = b""
        if self.memory.n_swa:
            first = self.memory.window_start(max(sequence.window, default=-1) + 1)
            tail += _pack({at: v for at, v in sequence.window.items() if at >= first})
        if self.memory.recurrent:
            tail += _pack(dict([sequence.state] if sequence.state else []))
        if partial and self.memory.needs_snapshot:
            return memoryview(bytearray(_header(self.memory) + tail))
        return memoryview(bytearray(_header(self.memory) + _pack(sequence.cells) + tail))

    def copy_snapshot(self, seq: int, into: Payload) -> None:
        payload = self.get_state(seq, partial=True)
        if len(payload) != len(into):
            raise EngineError(f"{len(into)} bytes for a snapshot of {len(payload)}.")
        into[:] = payload

    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool:
        memory = self.memory
        parts = _unpack(bytes(payload), _header(memory))
        whole = not (partial and memory.needs_snapshot)
        if parts is None or len(parts) != whole + (memory.n_swa > 0) + memory.recurrent:
            self._sequences[seq] = _Sequence()
            return False
        sequence = self._sequences[seq]
        if whole:
            self._sequences[seq] = sequence = _Sequence(cells=parts.pop(0))
        if memory.n_swa:
            window = parts.pop(0)
            if window:
                sequence.window = window
        if memory.recurrent:
            state = parts.pop(0)
            sequence.state = next(iter(state.items()), None)
        return True

    def clear(self) -> None:
        self._sequences = [_Sequence() for _ in range(self._n_seq_max)]

    def close(self) -> None:
        pass

    def _evaluate(self, row: BatchRow) -> int:
        sequence, memory = self._sequences[row.seq], self.memory
        if self.pos_max(row.seq) != row.position - 1:
            raise AssertionError(f"token at {row.position} after {self.pos_max(row.seq)}")
        value = _mix(row.token, row.position)
        if memory.has_blocks:
            sequence.cells[row.position] = value
        if memory.n_swa:
            sequence.window[row.position] = value
            cache = memory.n_swa * 2 + self._n_batch
            for position in [at for at in sequence.window if at <= row.position - cache]:
                del sequence.window[position]
        if memory.recurrent:
            sequence.state = (row.position, _mix(value, sequence.state[1] if sequence.state else 0))
        return self._hidden(sequence, row.position) if row.wants_logits else 0

    def _hidden(self, sequence: _Sequence, position: int) -> int:
        first = self.memory.window_start(position)
        window = sum(value for at, value in sequence.window.items() if at >= first)
        state = sequence.state[1] if sequence.state else 0
        return _mix(sum(sequence.cells.values()) & _MASK, window & _MASK, state, position)

    def _positions(self, seq: int) -> list[Collection[int]]:
        """For each part of the memory those it holds; llama.cpp tells what all parts agree on."""
        sequence, memory = self._sequences[seq], self.memory
        parts: list[Collection[int]] = []
        if memory.has_blocks:
            parts.append(sequence.window if memory.n_swa else sequence.cells)
        if memory.recurrent:
            parts.append([sequence.state[0]] if sequence.state else [])
        return parts

    def _is_full(self, further: int) -> bool:
        room = self._n_ctx - further
        held = sum(len(sequence.cells) for sequence in self._sequences)
        return held > room and self._cells_used() > room

    def _cells_used(self) -> int:
        """Those that sequences share are counted once."""
        return len({item for sequence in self._sequences for item in sequence.cells.items()})


def _header(memory: Memory) -> bytes:
    """Eight bytes, like llama.cpp's; other kinds have others."""
    return f"FAKE{memory.kind:.3}{'w' if memory.n_swa else '-'}".encode()


def _pack(cells: dict[int, int]) -> bytes:
    body = json.dumps(sorted(cells.items())).encode()
    return len(body).to_bytes(4, "little") + body


def _unpack(raw: bytes, header: bytes) -> list[dict[int, int]] | None:
    """None for bytes that no context of this kind wrote."""
    parts, raw = [], raw.removeprefix(header) if raw.startswith(header) else b"?"
    while raw:
        size = int.from_bytes(raw[:4], "little")
        try:
            parts.append({int(at): int(value) for at, value in json.loads(raw[4 : 4 + size])})
        except ValueError:
            return None
        raw = raw[4 + size :]
    return parts
