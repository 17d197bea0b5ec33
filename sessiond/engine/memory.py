"""What kind of state a model keeps, and what that means for saving and rewinding it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
"""Token ids of one line from position 0, shape (n,)."""


class MemoryKind(StrEnum):
    ATTENTION = "attention"
    SWA = "swa"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Memory:
    """`n_swa` is the sliding window in tokens, 0 without one (hybrids may have one too)."""

    kind: MemoryKind
    n_swa: int = 0

    @property
    def recurrent(self) -> bool:
        return self.kind in (MemoryKind.RECURRENT, MemoryKind.HYBRID)

    @property
    def has_blocks(self) -> bool:
        """Whether any part of the state is addressed by position."""
        return self.kind is not MemoryKind.RECURRENT

    @property
    def needs_snapshot(self) -> bool:
        """Whether a rewind or a restore needs a snapshot: the state cannot be truncated."""
        return self.recurrent or self.n_swa > 0

    def window_start(self, position: int) -> int:
        """First position that must still be in the window to evaluate `position`."""
        return max(0, position - self.n_swa) if self.n_swa else 0


def as_tokens(ids: object) -> Tokens:
    return np.asarray(ids, dtype=np.int32)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length in tokens of the longest common prefix."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def is_prefix(a: Tokens, b: Tokens) -> bool:
    """Whether `b` begins with all of `a`."""
    n = len(a)
    if not n or n > len(b) or a[-1] != b[n - 1]:  # nearly always enough
        return not n
    return np.array_equal(a, b[:n])
