"""Turns on their way into the ledger: what could not be written waits and goes first next time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions.ledger import Ledger, TurnRefused
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import Turn


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many turns of which session id are only in memory, and why."""

    turns: Mapping[str, int] = field(default_factory=dict)
    error: LedgerError | None = None

    @property
    def count(self) -> int:
        return sum(self.turns.values())


class Journal:
    """The ledger's worker thread only, but for `waiting`, which any thread may read.

    A turn never gets into the ledger before its parent. `waiting` is as the last operation left it:
    a turn that is being written does not wait.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.waiting = Waiting()
        self._ledger = ledger
        self._waiting: list[tuple[str, Turn]] = []
        self._records: dict[str, SessionRecord] = {}
        self._error: LedgerError | None = None

    def commit(self, session: SessionRecord, *turns: Turn) -> bool:
        """Whether the turns are durable now. If not, they wait here, behind those before them."""
        self._records[session.id] = session
        self._waiting += [(session.id, turn) for turn in turns]
        self.retry()
        return all(waiting is not turn for _, waiting in self._waiting for turn in turns)

    def retry(self) -> int:
        """Try to write what waits, in order; the number that still waits.

        A turn that the ledger can never take holds up only its own session.
        """
        self._error, left, stuck = None, [], set[str]()
        try:
            for session, turn in self._waiting:
                if self._unwritable or session in stuck or not self._write(session, turn):
                    stuck.add(session)
                    left.append((session, turn))
            self._waiting = left
        finally:
            self._settle()
        return len(self._waiting)

    def update(self, session: SessionRecord, fields: Collection[str]) -> None:
        """As the ledger does, also for a session that has no row yet."""
        self._ledger.update(session, fields)
        if (known := self._records.get(session.id)) is not None:
            changed = {name: getattr(session, name) for name in fields}
            self._records[session.id] = replace(known, **changed)

    def delete(self, session: SessionRecord) -> None:
        """The session, its turns and those that wait. After a LedgerError nothing has changed."""
        try:
            self._ledger.delete(session.name)
        except SessionNotFound:
            if session.id not in self._records:
                raise
        self._waiting = [one for one in self._waiting if one[0] != session.id]
        self._settle()

    def answered(self, response: str) -> tuple[str, int] | None:
        """As the ledger says it, also of turns that wait."""
        for session, turn in self._waiting:
            if turn.response_id == response:
                return self._records[session].name, turn.number
        return self._ledger.answered(response)

    def known_responses(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that a turn is known by, one that waits among them."""
        waiting = {turn.response_id for _, turn in self._waiting}
        return self._ledger.known_responses(ids) | {id_ for id_ in ids if id_ in waiting}

    def forget_response(self, response: str) -> bool:
        """As the ledger does, also of turns that wait."""
        for place, (session, turn) in enumerate(self._waiting):
            if turn.response_id == response:
                nameless = replace(turn, response_id=None, response=None)
                self._waiting[place] = (session, nameless)
                return True
        return self._ledger.forget_response(response)

    @property
    def _unwritable(self) -> bool:
        return self._error is not None and not isinstance(self._error, TurnRefused)

    def _write(self, session: str, turn: Turn) -> bool:
        try:
            self._ledger.commit(self._records[session], turn)
        except LedgerError as error:
            self._error = error
            return False
        return True

    def _settle(self) -> None:
        left = Counter(session for session, _ in self._waiting)
        self._records = {id_: record for id_, record in self._records.items() if id_ in left}
        self._error = self._error if self._waiting else None
        self.waiting = Waiting(dict(left), self._error)
