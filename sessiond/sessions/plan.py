"""Where each token's state comes from: a pure function from what there is to one small plan.

It looks for the landing that leaves the fewest tokens to evaluate. Candidates are every resident
sequence, alone or followed by stored blocks, and the disk alone. Attention can land anywhere it has
cells for; other memory only where a sequence stands, where its window still reaches, or on a
snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sessiond.engine.landing import BlockImport
from sessiond.engine.memory import Memory, Tokens, common_prefix
from sessiond.sessions.turn import Source
from sessiond.store.chain import Kind
from sessiond.store.found import Stored, StoredSnapshot


@dataclass(frozen=True, slots=True)
class Resident:
    """A sequence in the context. `own`: it belongs to the session that asks."""

    seq: int
    tokens: Tokens
    window_start: int
    own: bool
    running: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Land on `position`; evaluate the prompt from there.

    `source` gives its cells [0, keep); with `in_place` it is extended itself, having nothing beyond
    `position`. `restored` tokens come from disk; `restored_bytes` are read for them.
    `cells`: so many tokens of the prompt have state somewhere, whether it can be landed on or not.
    """

    position: int
    source: int | None = None
    in_place: bool = False
    own: bool = False
    keep: int = 0
    blocks: tuple[BlockImport, ...] = ()
    snapshot: StoredSnapshot | None = None
    restored: int = 0
    restored_bytes: int = 0
    cells: int = 0

    @property
    def needs_restore(self) -> bool:
        return bool(self.blocks) or self.snapshot is not None

    @property
    def _rank(self) -> tuple[int, int, int, int]:
        return (self.position, -self.restored_bytes, int(self.in_place), int(self.own))


def plan(
    prompt: Tokens,
    limit: int,
    residents: Sequence[Resident],
    stored: Stored,
    memory: Memory,
    *,
    whole: bool = False,
) -> Plan:
    """The best plan for `prompt`, landing at most at `limit`.

    `whole`: the state cannot be cut, so a resident line can only be used as far as it goes, and of
    what is stored only whole states.
    """
    if whole:
        uncut = tuple(s for s in stored.snapshots if s.kind is Kind.WHOLE)
        stored = replace(stored, blocks=(), snapshots=uncut)
    candidates: list[Plan] = [Plan(position=0)]
    for resident in [None, *residents]:
        for candidate in _landings(prompt, limit, resident, stored, memory):
            if not whole or resident is None or candidate.position == len(resident.tokens):
                candidates.append(candidate)
    best = max(candidates, key=lambda candidate: candidate._rank)
    shared = [common_prefix(resident.tokens, prompt) for resident in residents]
    return replace(best, cells=max([stored.tokens, *shared]))


def _landings(
    prompt: Tokens, limit: int, resident: Resident | None, stored: Stored, memory: Memory
) -> Iterator[Plan]:
    shared = common_prefix(resident.tokens, prompt) if resident else 0
    if resident and shared:
        yield from _on_resident(resident, shared, limit, memory)
    if resident and (not shared or not memory.has_blocks):
        return
    snapshots = [s for s in stored.snapshots if s.position <= limit]
    if memory.needs_snapshot or any(s.kind is Kind.WHOLE for s in snapshots):
        cells = max(shared, stored.tokens)
        for snapshot in snapshots:
            if snapshot.kind is Kind.WHOLE:
                yield _whole(snapshot)
            elif not memory.has_blocks or snapshot.position <= cells:
                yield _combined(resident, shared, snapshot.position, snapshot, stored, memory)
    if not memory.needs_snapshot:
        position = min(limit, stored.tokens)
        if position > shared:
            yield _combined(resident, shared, position, None, stored, memory)


def _on_resident(resident: Resident, shared: int, limit: int, memory: Memory) -> Iterator[Plan]:
    end, position = len(resident.tokens), min(shared, limit)
    if memory.needs_snapshot and resident.running:
        return  # it has gone on when the plan is executed
    if position < end and memory.recurrent:
        return
    if memory.n_swa and resident.window_start > memory.window_start(position):
        return
    appends = position == end and resident.own and not resident.running
    yield Plan(
        position=position,
        source=resident.seq,
        in_place=appends,
        own=resident.own,
        keep=position,
    )


def _whole(snapshot: StoredSnapshot) -> Plan:
    return Plan(
        position=snapshot.position,
        snapshot=snapshot,
        restored=snapshot.position,
        restored_bytes=snapshot.bytes,
    )


def _combined(
    resident: Resident | None,
    shared: int,
    position: int,
    snapshot: StoredSnapshot | None,
    stored: Stored,
    memory: Memory,
) -> Plan:
    """Cells of a resident as far as they are shared, then blocks, then the snapshot."""
    keep = min(shared, position) if resident else 0
    needed = [b for b in stored.blocks if b.start + b.usable > keep and b.start < position]
    if keep == position or not memory.has_blocks:
        needed = []
    if needed:
        keep = min(keep, needed[0].start)
    read = sum(block.bytes for block in needed) + (snapshot.bytes if snapshot else 0)
    in_memory = not read
    source = resident if keep else None
    return Plan(
        position=position,
        source=source.seq if source else None,
        own=source.own if source else in_memory,
        keep=keep,
        blocks=tuple(
            BlockImport(b.key, b.start, min(position, b.start + b.usable)) for b in needed
        ),
        snapshot=snapshot,
        restored=0 if in_memory else position - keep,
        restored_bytes=read,
    )


def source_of(plan: Plan, *, known: bool) -> Source:
    """The contract's word for where most reused tokens came from.

    `known`: the ledger has the text.
    """
    if plan.position == 0:
        return "ledger" if known else "new"
    if plan.restored > plan.keep:
        return "disk"
    return "resident" if plan.own else "fork"


def landed_on(plan: Plan) -> str:
    """For the metric: where the state came from that the evaluation began on."""
    if plan.position == 0:
        return "nothing"
    if plan.snapshot is not None:
        return "disk" if plan.snapshot.bytes else "ring"
    return "disk" if plan.blocks else "resident"
