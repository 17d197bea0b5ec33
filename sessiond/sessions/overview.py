"""What `sessiond list` and `show` say of a session: how big it is and how fast it is back."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions.outline import Outline
from sessiond.sessions.register import Register
from sessiond.sessions.rules import Rules
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.shelf import Shelf
from sessiond.sessions.standing import (
    Scene,
    Standing,
    back_in_ms,
    expected,
    files_of,
    look,
    standing_of,
    state_of,
)
from sessiond.sessions.transcript import Chat
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import SessionSummary, TranscriptMessage, TurnSummary

AT_ONCE = 16
"""Sessions whose turns and state are looked up for one list. Of the others it says what was found
before, or what the outline of their turns lets expect: each list looks up some more.
"""
_FRESH = AT_ONCE // 2
"""So many of those used last come before sessions that were never looked up."""
LOOK_S = 0.05
"""Once this is over only sessions in the context are looked up: others may have very many turns."""
_PAUSE = 256


@dataclass(frozen=True, slots=True)
class _Seen:
    """A standing as it was found, and what it was found for. `look` counts up."""

    mark: Hashable
    setting: Hashable
    look: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class _Row:
    """A summary, and all that it was made of. `speed` is the machine's, as it was found by then."""

    record: SessionRecord
    standing: Standing
    saved: bool
    speed: Hashable
    summary: SessionSummary


@dataclass(frozen=True, slots=True)
class _Guess:
    """A standing without a look, and what it was made of."""

    outline: Outline
    stored: bool
    standing: Standing


class Overview:
    """Event loop only. Sessions that have not changed are not looked up again."""

    def __init__(self, register: Register, rules: Rules) -> None:
        self._register = register
        self.rules = rules
        self._seen: dict[str, _Seen] = {}
        self._looks = 0
        self._outlines: dict[str, tuple[float, Outline]] = {}
        self._guesses: dict[str, _Guess] = {}
        self._guessed_in: Hashable = None
        self._rows: dict[str, _Row] = {}

    async def summaries(self, machine: Shelf | None) -> list[SessionSummary]:
        """The most recently used first. A session that cannot be read says so."""
        scene, records = await look(machine), self._register.records
        found: dict[str, Standing] = {}
        until = time.monotonic() + LOOK_S
        for record in self._due(records, scene):
            if time.monotonic() > until and record.id not in scene.lines:
                continue
            try:
                found[record.id] = await self._standing(record, scene)
            except SessionNotFound:
                continue
            except LedgerError as error:
                found[record.id] = Standing(reason=str(error))
        found |= await self._rest(records, scene, found)
        present = {record.id for record in self._register.records}
        for kept in (self._seen, self._guesses, self._rows):
            for gone in kept.keys() - present:
                del kept[gone]
        return await self._listed([r for r in records if r.id in present], found, machine)

    async def summary(self, record: SessionRecord, machine: Shelf | None) -> SessionSummary:
        """Raises LedgerError."""
        standing = await self._standing(record, await look(machine))
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

    def forget(self, session: str) -> None:
        """Some turns of session id `session` are gone: it is looked at anew."""
        for kept in (self._seen, self._outlines, self._guesses, self._rows):
            kept.pop(session, None)

    def _due(self, records: Sequence[SessionRecord], scene: Scene) -> list[SessionRecord]:
        """Whom to look up now: first who has changed, then who was looked up longest ago."""
        ranked: list[tuple[bool, int, int]] = []
        setting = scene.setting
        for place, record in enumerate(records):
            seen = self._seen.get(record.id)
            changed = seen.mark != scene.mark(record) if seen else record.id in scene.lines
            if changed or seen is None or seen.setting != setting:
                ranked.append((not changed and place >= _FRESH, seen.look if seen else 0, place))
        return [records[place] for *_, place in heapq.nsmallest(AT_ONCE, ranked)]

    async def _standing(self, record: SessionRecord, scene: Scene) -> Standing:
        mark, setting = scene.mark(record), scene.setting
        seen = self._seen.get(record.id)
        if seen and (seen.mark, seen.setting) == (mark, setting):
            return seen.standing
        tree = await self._register.glance(record.name)
        own = scene.lines.get(record.id, ())
        standing = await standing_of(tree, own, scene.machine, record.owner)
        if scene.machine is not None:
            self._looks += 1
            self._seen[record.id] = _Seen(mark, setting, self._looks, standing)
        return standing

    async def _rest(
        self, records: Sequence[SessionRecord], scene: Scene, found: dict[str, Standing]
    ) -> dict[str, Standing]:
        """Of those that were not looked up now. Raises LedgerError."""
        seen, rest, files = dict(self._seen), dict[str, Standing](), scene.files
        self._forget_guesses(scene)
        known = found.keys() | seen.keys()
        outlines = await self._outlined([r for r in records if r.id not in known], records)
        for place, record in enumerate(records):
            await _pause(place)
            standing = found.get(record.id)
            if standing is None and record.id in seen:
                standing = rest[record.id] = seen[record.id].standing
            elif standing is None:
                outline = outlines[record.id][1]
                standing = rest[record.id] = self._guess(record, outline, scene, files > 0)
            files -= files_of(standing.tokens)
        return rest

    def _forget_guesses(self, scene: Scene) -> None:
        if self._guessed_in != (setting := (scene.machine is None, scene.setting)):
            self._guesses.clear()
            self._guessed_in = setting

    def _guess(
        self, record: SessionRecord, outline: Outline, scene: Scene, stored: bool
    ) -> Standing:
        made = self._guesses.get(record.id)
        if made is None or made.outline is not outline or made.stored != stored:
            made = _Guess(outline, stored, expected(outline, scene, stored=stored))
            self._guesses[record.id] = made
        return made.standing

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
        standings: dict[str, Standing],
        machine: Shelf | None,
    ) -> list[SessionSummary]:
        listed: list[SessionSummary] = []
        speed = _speed(machine)
        for place, record in enumerate(records):
            await _pause(place)
            standing, saved = standings[record.id], self._register.is_saved(record)
            row = self._rows.get(record.id)
            if row is None or not _is_of(row, record, standing, saved, speed):
                summary = self._summary(record, standing, machine)
                row = self._rows[record.id] = _Row(record, standing, saved, speed, summary)
            listed.append(row.summary)
        return listed

    def _summary(
        self, record: SessionRecord, standing: Standing, machine: Shelf | None
    ) -> SessionSummary:
        return SessionSummary(
            name=record.name,
            group=record.name.partition(":")[0] if ":" in record.name else None,
            agent=record.agent,
            title=record.title,
            state=state_of(standing.prospect, standing.tokens),
            tokens=standing.tokens,
            turns=standing.turns,
            lines=standing.lines,
            created=record.created,
            last_used=record.last_used,
            bytes=standing.bytes,
            policy=self.rules.policy_of(record),
            pinned_front=self.rules.pinned_front_of(record),
            may_compact=record.may_compact,
            pinned=record.pinned,
            owner=record.owner,
            hit_rate=standing.hit_rate,
            back_in_ms=back_in_ms(standing, machine) if machine else 0.0,
            reason=standing.reason,
            saved=self._register.is_saved(record),
        )


async def _pause(place: int) -> None:
    """Lets others come in between, for there may be very many sessions."""
    if place % _PAUSE == _PAUSE - 1:
        await asyncio.sleep(0)


def _is_of(
    row: _Row, record: SessionRecord, standing: Standing, saved: bool, speed: Hashable
) -> bool:
    same = row.record is record and row.standing is standing
    return same and (row.saved, row.speed) == (saved, speed)


def _speed(machine: Shelf | None) -> Hashable:
    """The same for as long as estimates are."""
    return (machine.rates.restore.value, machine.rates.prefill.value) if machine else None


def latest_turns(tree: SessionTree, count: int) -> tuple[TurnSummary, ...]:
    """The newest first."""
    main = tree.main_path(time.time())
    newest = heapq.nlargest(count, tree, key=lambda turn: turn.number)
    return tuple(_turn_summary(turn, turn.number in main) for turn in newest)


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
