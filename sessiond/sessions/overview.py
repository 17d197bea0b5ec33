"""What `sessiond list` and `show` say of a session: how big it is and how fast it is back."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from sessiond.engine.sequence import SequenceView
from sessiond.errors import LedgerError, SessionNotFound, StateError
from sessiond.sessions.lander import Machine
from sessiond.sessions.outline import Outline, TurnOutline
from sessiond.sessions.plan import Plan, plan
from sessiond.sessions.register import Register
from sessiond.sessions.residency import as_resident
from sessiond.sessions.rules import Rules
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import Chat
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import SessionState, SessionSummary, TranscriptMessage, TurnSummary
from sessiond.store.chain import BLOCK_TOKENS
from sessiond.store.found import Stored, Usage

_NOWHERE = Plan(position=0)
_REVIEW_S = 3600
"""Which line is the main one depends on the time, too."""
AT_ONCE = 16
"""Sessions whose turns and state are looked up for one list. Of the others it says what was found
before, or what the outline of their turns lets expect: each list looks up some more.
"""
_FRESH = AT_ONCE // 2
"""So many of those used last come before sessions that were never looked up."""
_PAUSE = 256


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


@dataclass(frozen=True, slots=True)
class _Seen:
    """A standing as it was found, and what it was found for. `look` counts up."""

    mark: Hashable
    setting: Hashable
    look: int
    standing: _Standing


class Overview:
    """Event loop only. Sessions that have not changed are not looked up again."""

    def __init__(self, register: Register, rules: Rules) -> None:
        self._register = register
        self._rules = rules
        self._seen: dict[str, _Seen] = {}
        self._looks = 0
        self._outlines: dict[str, tuple[float, Outline]] = {}

    async def summaries(self, machine: Machine | None) -> list[SessionSummary]:
        """The most recently used first. A session that cannot be read says so."""
        scene, records = await _look(machine), self._register.records
        found: dict[str, _Standing] = {}
        for record in self._due(records, scene):
            try:
                found[record.id] = await self._standing(record, scene)
            except SessionNotFound:
                continue
            except LedgerError as error:
                found[record.id] = _Standing(reason=str(error))
        found |= await self._rest(records, scene, found)
        present = {record.id for record in self._register.records}
        self._seen = {id_: seen for id_, seen in self._seen.items() if id_ in present}
        return await self._listed([r for r in records if r.id in present], found, machine)

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

    def _due(self, records: Sequence[SessionRecord], scene: _Scene) -> list[SessionRecord]:
        """Whom to look up now: first who has changed, then who was looked up longest ago."""
        ranked: list[tuple[bool, int, int]] = []
        setting = scene.setting
        for place, record in enumerate(records):
            seen = self._seen.get(record.id)
            changed = seen.mark != scene.mark(record) if seen else record.id in scene.lines
            if changed or seen is None or seen.setting != setting:
                ranked.append((not changed and place >= _FRESH, seen.look if seen else 0, place))
        return [records[place] for *_, place in heapq.nsmallest(AT_ONCE, ranked)]

    async def _standing(self, record: SessionRecord, scene: _Scene) -> _Standing:
        mark, setting = scene.mark(record), scene.setting
        seen = self._seen.get(record.id)
        if seen and (seen.mark, seen.setting) == (mark, setting):
            return seen.standing
        tree = await self._register.glance(record.name)
        standing = await _standing_of(tree, scene.lines.get(record.id, ()), scene.machine)
        if scene.machine is not None:
            self._looks += 1
            self._seen[record.id] = _Seen(mark, setting, self._looks, standing)
        return standing

    async def _rest(
        self, records: Sequence[SessionRecord], scene: _Scene, found: dict[str, _Standing]
    ) -> dict[str, _Standing]:
        """Of those that were not looked up now. Raises LedgerError."""
        seen, rest, files = dict(self._seen), dict[str, _Standing](), scene.files
        known = found.keys() | seen.keys()
        outlines = await self._outlined([r for r in records if r.id not in known], records)
        for place, record in enumerate(records):
            await _pause(place)
            standing = found.get(record.id)
            if standing is None and record.id in seen:
                standing = rest[record.id] = seen[record.id].standing
            elif standing is None:
                outline = outlines[record.id][1]
                standing = rest[record.id] = _expected(outline, scene, stored=files > 0)
            files -= _files_of(standing.tokens)
        return rest

    async def _outlined(
        self, wanted: Sequence[SessionRecord], records: Sequence[SessionRecord]
    ) -> dict[str, tuple[float, Outline]]:
        """By session id, with the time of use they are of. Raises LedgerError."""
        if any(self._outlines.get(r.id, (None,))[0] != r.last_used for r in wanted):
            found = await self._register.outlines()
            self._outlines = {r.id: (r.last_used, found.get(r.id, Outline())) for r in records}
        return self._outlines

    async def _listed(
        self,
        records: Sequence[SessionRecord],
        standings: dict[str, _Standing],
        machine: Machine | None,
    ) -> list[SessionSummary]:
        listed: list[SessionSummary] = []
        for place, record in enumerate(records):
            await _pause(place)
            listed.append(self._summary(record, standings[record.id], machine))
        return listed

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


async def _pause(place: int) -> None:
    """Lets others come in between, for there may be very many sessions."""
    if place % _PAUSE == _PAUSE - 1:
        await asyncio.sleep(0)


async def _look(machine: Machine | None) -> _Scene:
    lines: dict[str, list[SequenceView]] = defaultdict(list)
    if machine is None:
        return _Scene(None, None, lines, "")
    for view in await machine.engine.views():
        if view.owner is not None:
            lines[view.owner.session].append(view)
    try:
        usage = await asyncio.to_thread(machine.store.usage)
    except StateError:
        usage = None
    return _Scene(machine, usage, lines, machine.fingerprint.value)


def _expected(outline: Outline, scene: _Scene, *, stored: bool) -> _Standing:
    """Without a look. `stored`: those used later leave room for its state on disk."""
    end, machine = outline.end, scene.machine
    if end is None:
        return _Standing()
    prospect, size, reason = _NOWHERE, 0, "the model is loading"
    if machine is not None and stored and end.fingerprint == scene.fingerprint:
        size, reason = int(_files_of(end.length) * scene.file_bytes), ""
        prospect = Plan(position=end.length, restored=end.length, restored_bytes=size)
    elif machine is not None:
        reason = _reason(end, machine)
    turns, lines, rate = outline.turns, outline.lines, outline.hit_rate
    return _Standing(end.length, turns, lines, rate, prospect, size, reason)


def _files_of(tokens: int) -> int:
    """About so many state files."""
    return tokens // BLOCK_TOKENS + 1


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


def _reason(leaf: Turn | TurnOutline, machine: Machine) -> str:
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
