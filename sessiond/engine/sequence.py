"""The engine's record of one sequence: which tokens are in its cells."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from sessiond.engine.memory import Tokens


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose line a sequence holds: a session's id, the line's first turn, and `whose` API keys the
    session belongs to, "" for the house. State never goes from one of `whose` to another. Opaque
    here.
    """

    session: str
    root: int
    whose: str


def whose(owner: object) -> str:
    """Whose state the line of `owner` is; nobody's is the house's."""
    return owner.whose if isinstance(owner, Owner) else ""


@dataclass(frozen=True, slots=True)
class SequenceView:
    """A consistent picture of one sequence between two steps.

    `epoch` changes whenever tokens before the end are replaced; appending keeps it. `window_start`
    is the first position whose window cells are there. `last_used` is monotonic seconds.
    """

    seq: int
    tokens: Tokens
    epoch: int
    window_start: int
    running: bool
    last_used: float
    owner: Owner | None = None


class Sequence:
    """Engine thread only. The first `shared` cells also belong to sequence `shares_with`."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.epoch = 0
        self.last_used = 0.0
        self.owner: Owner | None = None
        self.shares_with: int | None = None
        self.shared = 0
        self._buffer: Tokens = np.empty(1024, np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Tokens:
        """A view that stays valid: when history changes the buffer is replaced, not overwritten."""
        return self._buffer[: self._length]

    def append(self, tokens: Tokens) -> None:
        end = self._length + len(tokens)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer)), np.int32)
            grown[: self._length] = self.tokens
            self._buffer = grown
        self._buffer[self._length : end] = tokens
        self._length = end
        self.last_used = time.monotonic()

    def replace(self, tokens: Tokens, owner: Owner | None = None) -> None:
        """Everything there was is gone; `tokens` are in the cells now."""
        self.owner = owner
        self._buffer = np.empty(max(1024, 2 * len(tokens)), np.int32)
        self._buffer[: len(tokens)] = tokens
        self._length = len(tokens)
        self.epoch += 1
        self.shares_with, self.shared = None, 0
        self.last_used = time.monotonic()
