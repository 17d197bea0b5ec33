"""How long and how much: what the lifecycle is told by the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`load_wait` and `drain` in seconds; `queue` is how many turns may wait. A line that is idle
    for `park` seconds leaves the context; for None, when others need its cells or run beside it.
    Turns unused for `keep` seconds leave the ledger, 0 for never. `keep_free` bytes of the disk
    stay free. After `unload_after` seconds without a use the model leaves memory, 0 for never.
    `warm` sessions at most are read again once nothing has used it for `warm_after` seconds.
    """

    queue: int = 64
    load_wait: float = 600.0
    drain: float = 10.0
    park: float | None = None
    keep: float = 30 * 86400.0
    keep_free: int = 0
    unload_after: float = 0.0
    warm: int = 16
    warm_after: float = 60.0
