"""How full the context and the ring are, and how fast this machine was measured to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sessiond.errors import EngineError
from sessiond.sessions.lander import Machine
from sessiond.store.loss import Rank
from sessiond.store.ring_entry import RingEntry


@dataclass(frozen=True, slots=True)
class RankFill:
    """Snapshots in the ring of one rank, and the bytes of their payloads."""

    rank: str
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """`cells_used` of `cells` tokens of the context are taken; `queue` turns at most may wait.

    Rates are None until something was measured.
    """

    cells: int
    cells_used: int
    queue: int
    ring: tuple[RankFill, ...]
    prefill_tokens_per_second: float | None
    restore_bytes_per_second: float | None


async def gauges_of(machine: Machine | None, queue: int) -> Gauges:
    """`machine` None while no model is loaded. Nothing is in a context whose engine has stopped."""
    if machine is None:
        return Gauges(0, 0, queue, (), None, None)
    cells = machine.engine.core.context.n_ctx
    try:
        free = await machine.engine.call(lambda core: core.free_cells())
    except EngineError:
        free = cells
    rates = machine.rates
    return Gauges(
        cells=cells,
        cells_used=min(cells, max(0, cells - free)),
        queue=queue,
        ring=fill(machine.checkpoints.entries),
        prefill_tokens_per_second=_a_second(rates.prefill.measured),
        restore_bytes_per_second=_a_second(rates.restore.measured),
    )


def fill(entries: Iterable[RingEntry]) -> tuple[RankFill, ...]:
    """By rank, the one that is worth most first; those without any are left out."""
    count, size = Counter[Rank](), Counter[Rank]()
    for entry in entries:
        count[entry.rank] += 1
        size[entry.rank] += entry.bytes
    return tuple(
        RankFill(rank.name.lower(), count[rank], size[rank]) for rank in sorted(count, reverse=True)
    )


def _a_second(per_ms: float | None) -> float | None:
    return None if per_ms is None else per_ms * 1e3
