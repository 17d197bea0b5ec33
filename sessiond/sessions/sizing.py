"""How many tokens and lines fit: pure arithmetic on what the self-test measured."""

from __future__ import annotations

from sessiond.engine.memory import Memory
from sessiond.engine.probe import Verdict

_POOL_SHARE = 0.5
"""Of the free memory, for the cells of all lines."""
_STATE_SHARE = 0.1
"""Of the free memory, for recurrent states and windows, which grow with the number of lines."""
_MOST_LINES, _FEWEST_LINES = 16, 2
_RING_SNAPSHOTS = 32
_PAGE = 4096
_SMALLEST_POOL = 2048


def pool_tokens(verdict: Verdict, n_ctx_train: int, available: int) -> int:
    """Size of the pool in tokens: the trained length, or what `available` bytes allow."""
    if not verdict.token_bytes:
        return n_ctx_train
    fitting = int(available * _POOL_SHARE) // verdict.token_bytes
    return max(min(n_ctx_train, fitting), min(n_ctx_train, _SMALLEST_POOL))


def active_lines(verdict: Verdict, memory: Memory, available: int) -> int:
    """How many lines can be in the context at once."""
    state = verdict.snapshot_bytes + memory.n_swa * verdict.window_token_bytes
    if not state:
        return _MOST_LINES
    return max(_FEWEST_LINES, min(_MOST_LINES, int(available * _STATE_SHARE) // state))


def ring_budget(verdict: Verdict, memory: Memory, total: int) -> int:
    """The default: 32 snapshots of the model, at most a quarter of `total` RAM, in bytes."""
    size = verdict.snapshot_bytes + memory.n_swa * verdict.window_token_bytes
    return min(_RING_SNAPSHOTS * (size + _PAGE), total // 4)


def store_quota(free: int, used: int) -> int:
    """The default in bytes: the smaller of 50 GiB and 20 % of what the disk has for sessiond."""
    return min(50 << 30, (free + used) // 5)
