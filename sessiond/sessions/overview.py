"""What `sessiond list` and `show` say of a session: how big it is and how fast it is back."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from sessiond.engine.sequence import SequenceView
from sessiond.errors import LedgerError, SessionNotFound, StateError
from sessiond.sessions.execution import Machine
from sessiond.sessions.plan import Plan, plan
from sessiond.sessions.register import Register
from sessiond.sessions.residency import as_resident
from sessiond.sessions.rules import Rules
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import Chat
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import SessionState, SessionSummary, TranscriptMessage, TurnSummary
from sessiond.store.found import Stored, Usage

_NOWHERE = Plan(position=0)
_REVIEW_S = 3600
"""Which line is the main one depends on the time, too."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """What a summary says of the turns and of their state. `bytes` on disk."""

    tokens: int = 0
    turns: int = 0
    lines: int = 0
    hit_rate: float = 0.0
    prospect: Plan = _NOWHERE
    bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that sessions have in common when they are looked at. `machine` None while it loads."""

    machine: Machine | None
    usage: Usage | None
    lines: dict[str, list[SequenceView]]

    def mark(self, record: SessionRecord) -> Hashable:
        """The same for as long as nothing has changed that a standing depends on."""
        own = tuple((view.seq, view.epoch, len(view.tokens)) for view in self.lines[record.id])
        model = self.machine.fingerprint.value if self.machine else None
        return record.last_used, own, self.usage, model, int(time.time() // _REVIEW_S)


class Overview:
    """Event loop only. Sessions that have not changed are not looked up again."""

    def __init__(self, register: Register, rules: Rules) -> None:
        self._register = register
        self._rules = rules
        self._known: dict[str, tuple[Hashable, _Standing]] = {}

    async def summaries(self, machine: Machine | None) -> list[SessionSummary]:
        """The most recently used first. A session that cannot be read says so."""
        scene, listed = await _look(machine), []
        for record in self._register.records:
            try:
                standing = await self._standing(record, scene)
            except SessionNotFound:
                continue
            except LedgerError as error:
                standing = _Standing(reason=str(error))
            listed.append(self._summary(record, standing, machine))
        present = {record.id for record in self._register.records}
        self._known = {id_: known for id_, known in self._known.items() if id_ in present}
        return listed

    async def summary(self, record: SessionRecord, machine: Machine | None) -> SessionSummary:
        """Raises LedgerError."""
        standing = await self._standing(record, await _look(machine))
        return self._summary(record, standing, machine)

    async def turns(self, name: str) -> list[TurnSummary]:
        """Raises LedgerError."""
        tree = await self._register.tree(name)
        main = tree.main_path(time.time())
        return [_turn_summary(turn, turn.number in main) for turn in tree]

    async def transcript(self, name: str) -> list[TranscriptMessage]:
        """Of the main line. Raises LedgerError."""
        tree = await self._register.tree(name)
        leaf = tree.main_line(time.time())
        said: list[TranscriptMessage] = []
        for turn in tree.path(leaf) if leaf is not None else ():
            said += [TranscriptMessage(turn.number, *new) for new in _new_in(turn)]
            said.append(TranscriptMessage(turn.number, "assistant", turn.reply))
        return said

    async def _standing(self, record: SessionRecord, scene: _Scene) -> _Standing:
        mark = scene.mark(record)
        seen, standing = self._known.get(record.id, (None, _Standing()))
        if seen != mark:
            tree = await self._register.glance(record.name)
            standing = await _standing_of(tree, scene.lines[record.id], scene.machine)
            self._known[record.id] = mark, standing
        return standing

    def _summary(
        self, record: SessionRecord, standing: _Standing, machine: Machine | None
    ) -> SessionSummary:
        return SessionSummary(
            name=record.name,
            group=record.name.partition(":")[0] if ":" in record.name else None,
            agent=record.agent,
            title=record.title,
            state=_state(standing.prospect, standing.tokens),
            tokens=standing.tokens,
            turns=standing.turns,
            lines=standing.lines,
            created=record.created,
            last_used=record.last_used,
            bytes=standing.bytes,
            policy=self._rules.policy_of(record),
            pinned_front=self._rules.pinned_front_of(record),
            may_compact=record.may_compact,
            hit_rate=standing.hit_rate,
            back_in_ms=_back_in_ms(standing, machine) if machine else 0.0,
            reason=standing.reason,
            saved=self._register.is_saved(record),
        )


async def _look(machine: Machine | None) -> _Scene:
    lines: dict[str, list[SequenceView]] = defaultdict(list)
    if machine is None:
        return _Scene(None, None, lines)
    for view in await machine.engine.views():
        if view.owner is not None:
            lines[view.owner.session].append(view)
    try:
        usage = await asyncio.to_thread(machine.store.usage)
    except StateError:
        usage = None
    return _Scene(machine, usage, lines)


async def _standing_of(
    tree: SessionTree, own: Sequence[SequenceView], machine: Machine | None
) -> _Standing:
    leaf = tree.main_line(time.time())
    if leaf is None:
        return _Standing()
    standing = _Standing(tree.length(leaf), len(tree), len(tree.leaves()), _hit_rate(tree))
    if machine is None:
        return replace(standing, reason="the model is loading")
    tokens, residents = tree.path_tokens(leaf), [as_resident(view, own=True) for view in own]
    try:
        stored = await asyncio.to_thread(machine.store.lookup, tokens)
    except StateError:
        stored = Stored()
    whole = machine.saver.whole
    found = plan(tokens, len(tokens), residents, stored, machine.memory, whole=whole)
    return replace(
        standing,
        prospect=replace(found, blocks=(), snapshot=None),
        bytes=sum(b.bytes for b in stored.blocks) + sum(s.bytes for s in stored.snapshots),
        reason="" if found.position else _reason(tree[leaf], machine),
    )


def _back_in_ms(standing: _Standing, machine: Machine) -> float:
    """An estimate from what this machine was measured to do."""
    prospect, tokens = standing.prospect, standing.tokens
    if _state(prospect, tokens) == "resident":
        return 0.0
    reading = machine.rates.restore.ms(prospect.restored_bytes)
    return reading + machine.rates.prefill.ms(max(0, tokens - 1 - prospect.position))


def _state(prospect: Plan, tokens: int) -> SessionState:
    if not tokens or prospect.position < tokens // 2:
        return "ledger"
    return "disk" if prospect.restored > prospect.keep else "resident"


def _reason(leaf: Turn, machine: Machine) -> str:
    if leaf.model != machine.fingerprint.model:
        return "model changed"
    if leaf.fingerprint != machine.fingerprint.value:
        return "settings changed"
    return "state not saved"


def _hit_rate(tree: SessionTree) -> float:
    prompt = sum(turn.stats.prompt_tokens for turn in tree)
    return sum(turn.stats.cached for turn in tree) / prompt if prompt else 0.0


def _new_in(turn: Turn) -> list[tuple[str, str]]:
    if isinstance(turn.content, Chat):
        return [(message.role, message.content) for message in turn.content.messages]
    return [("text", turn.content.prompt)]


def _turn_summary(turn: Turn, main: bool) -> TurnSummary:
    return TurnSummary(
        turn=turn.number,
        parent=turn.parent,
        line="main" if main else "side",
        role_of_new=turn.roles,
        prompt_tokens=turn.stats.prompt_tokens,
        cached_tokens=turn.stats.cached,
        prefilled_tokens=turn.stats.prefilled,
        completion_tokens=len(turn.reply_tokens),
        source=turn.stats.source,
        miss=turn.stats.miss,
        finish_reason=turn.finish_reason,
        ttft_ms=turn.stats.ttft_ms,
        created=turn.created,
    )
