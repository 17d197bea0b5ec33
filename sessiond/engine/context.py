"""What the engine needs of llama.cpp, as two protocols. `llama.py` and `fake.py` implement them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sessiond.engine.memory import Memory, Tokens
from sessiond.engine.sampling import Sampling

Payload = memoryview
"""State bytes, contiguous, format "B"."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    token: int
    position: int
    seq: int
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts read once at load. `tokenizer` is a digest of the vocabulary.

    `n_ctx_train` is the trained length in tokens, `n_ctx_orig` that before rope scaling (0: none).
    """

    name: str
    architecture: str
    memory: Memory
    n_ctx_train: int
    n_ctx_orig: int
    n_vocab: int
    n_params: int
    size_bytes: int
    chat_template: str | None
    bos: str
    eos: str
    adds_bos: bool
    tokenizer: str


class Model(Protocol):
    """The vocabulary is immutable: any thread may call these."""

    @property
    def info(self) -> ModelInfo: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens: ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token stands for; control tokens are empty unless `special`."""
        ...

    def ends_generation(self, token: int) -> bool: ...


class Sampler(Protocol):
    """One per run. Engine thread only."""

    def sample(self, row: int) -> int:
        """Draw from the logits of batch row `row` of the last decode, and accept the token."""
        ...

    def close(self) -> None: ...


class Context(Protocol):
    """One llama.cpp context with its sequences. Engine thread only, all of it."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_seq_max(self) -> int: ...

    @property
    def n_batch(self) -> int: ...

    @property
    def memory(self) -> Memory: ...

    def decode(self, tokens: Tokens, start: int, seq: int, *, logits: bool) -> None:
        """Evaluate at most n_batch tokens of one sequence at positions start, start + 1, …

        `logits` asks for those of the last token.
        Raises PoolFull (nothing changed) or DecodeFailed (clear everything).
        """
        ...

    def decode_rows(self, rows: Sequence[BatchRow]) -> None:
        """One batch over several sequences; same errors."""
        ...

    def synchronize(self) -> None:
        """Wait until everything asked for is computed: a device computes after decode returns."""
        ...

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        """Logits of a batch row of the last decode, shape (n_vocab,); row -1 is the last.

        Valid until the next decode.
        """
        ...

    def sampler(self, sampling: Sampling, history: Tokens) -> Sampler:
        """`history` are the tokens the penalties look back on."""
        ...

    def seq_rm(self, seq: int, start: int, stop: int) -> bool: ...

    def seq_cp(self, source: int, target: int, start: int, stop: int) -> None: ...

    def pos_min(self, seq: int) -> int: ...

    def pos_max(self, seq: int) -> int:
        """-1 for an empty sequence."""
        ...

    def state_size(self, seq: int, *, partial: bool) -> int: ...

    def get_state(self, seq: int, *, partial: bool) -> Payload:
        """A new buffer. `partial`: only what cannot be truncated (recurrent state, window)."""
        ...

    def copy_snapshot(self, seq: int, into: Payload) -> None:
        """The partial state into memory of exactly its size. Raises EngineError."""
        ...

    def set_state(self, seq: int, payload: Payload, *, partial: bool) -> bool: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...
