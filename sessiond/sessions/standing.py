"""How a session stands: its size and where its state is, looked up or expected without a look."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from sessiond.engine.sequence import SequenceView
from sessiond.errors import StateError
from sessiond.sessions.outline import Outline, TurnOutline
from sessiond.sessions.plan import Plan, plan
from sessiond.sessions.residency import as_resident
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.shelf import Shelf
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import SessionState
from sessiond.store.chain import BLOCK_TOKENS
from sessiond.store.found import Stored, Usage

FOREIGN = MODEL_CHANGED, SETTINGS_CHANGED = "model changed", "settings changed"
"""Reasons for state that would have to be made anew."""
_NOWHERE = Plan(position=0)
_REVIEW_S = 3600
"""Which line is the main one depends on the time, too."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a summary says of the turns and of their state. `bytes` on disk."""

    tokens: int = 0
    turns: int = 0
    lines: int = 0
    hit_rate: float = 0.0
    prospect: Plan = _NOWHERE
    bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that sessions have in common when they are looked at. `machine` None until the model
    was loaded once.
    """

    machine: Shelf | None
    usage: Usage | None
    lines: dict[str, list[SequenceView]]
    fingerprint: str

    @property
    def files(self) -> int:
        """In the store."""
        return self.usage.blocks + self.usage.snapshots if self.usage else 0

    @property
    def file_bytes(self) -> float:
        """Of a file in the store, on average."""
        return self.usage.bytes / self.files if self.usage and self.files else 0.0

    def mark(self, record: SessionRecord) -> Hashable:
        """The same for as long as nothing has changed of the session itself."""
        lines = self.lines.get(record.id, ())
        return record.last_used, tuple((v.seq, v.epoch, len(v.tokens)) for v in lines)

    @property
    def setting(self) -> Hashable:
        """The same for as long as nothing has changed that all standings depend on."""
        return self.usage, self.fingerprint, int(time.time() // _REVIEW_S)


async def look(machine: Shelf | None) -> Scene:
    lines: dict[str, list[SequenceView]] = defaultdict(list)
    if machine is None:
        return Scene(None, None, lines, "")
    for view in await machine.views():
        if view.owner is not None:
            lines[view.owner.session].append(view)
    try:
        usage = await asyncio.to_thread(machine.store.usage)
    except StateError:
        usage = None
    return Scene(machine, usage, lines, machine.fingerprint.value)


def expected(outline: Outline, scene: Scene, *, stored: bool) -> Standing:
    """Without a look. `stored`: those used later leave room for its state on disk."""
    end, machine = outline.end, scene.machine
    if end is None:
        return Standing()
    prospect, size, reason = _NOWHERE, 0, "the model is loading"
    if machine is not None and stored and end.fingerprint == scene.fingerprint:
        size, reason = int(files_of(end.length) * scene.file_bytes), ""
        prospect = Plan(position=end.length, restored=end.length, restored_bytes=size)
    elif machine is not None:
        reason = _reason(end, machine)
    turns, lines, rate = outline.turns, outline.lines, outline.hit_rate
    return Standing(end.length, turns, lines, rate, prospect, size, reason)


def files_of(tokens: int) -> int:
    """About so many state files."""
    return tokens // BLOCK_TOKENS + 1


async def standing_of(
    tree: SessionTree, own: Sequence[SequenceView], machine: Shelf | None, owner: str
) -> Standing:
    """Of a session of `owner`, whose lines in the context are `own`."""
    leaf = tree.main_line(time.time())
    if leaf is None:
        return Standing()
    standing = Standing(tree.length(leaf), len(tree), len(tree.leaves()), _hit_rate(tree))
    if machine is None:
        return replace(standing, reason="the model is loading")
    tokens, residents = tree.path_tokens(leaf), [as_resident(view, own=True) for view in own]
    try:
        stored = await asyncio.to_thread(machine.store.of(owner).lookup, tokens)
    except StateError:
        stored = Stored()
    whole = machine.whole
    found = plan(tokens, len(tokens), residents, stored, machine.memory, whole=whole)
    return replace(
        standing,
        prospect=replace(found, blocks=(), snapshot=None),
        bytes=sum(b.bytes for b in stored.blocks) + sum(s.bytes for s in stored.snapshots),
        reason="" if found.position else _reason(tree[leaf], machine),
    )


def state_of(prospect: Plan, tokens: int) -> SessionState:
    if not tokens or prospect.position < tokens // 2:
        return "ledger"
    return "disk" if prospect.restored > prospect.keep else "resident"


def _reason(leaf: Turn | TurnOutline, machine: Shelf) -> str:
    if leaf.model != machine.fingerprint.model:
        return MODEL_CHANGED
    if leaf.fingerprint != machine.fingerprint.value:
        return SETTINGS_CHANGED
    return "state not saved"


def _hit_rate(tree: SessionTree) -> float:
    prompt = sum(turn.stats.prompt_tokens for turn in tree)
    return sum(turn.stats.cached for turn in tree) / prompt if prompt else 0.0


def back_in_ms(standing: Standing, machine: Shelf) -> float:
    """An estimate from what this machine was measured to do."""
    prospect, tokens = standing.prospect, standing.tokens
    if state_of(prospect, tokens) == "resident":
        return 0.0
    reading = machine.rates.restore.ms(prospect.restored_bytes)
    return reading + machine.rates.prefill.ms(max(0, tokens - 1 - prospect.position))
