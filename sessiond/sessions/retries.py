"""Which turn a request asks for once more: one whose client has gone, or of the same key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import replace

from sessiond.errors import InvalidRequest
from sessiond.sessions.turn import TurnRequest
from sessiond.sessions.turn_task import TurnTask

KEPT = 64
"""Turns with a key that can be read again after their end."""


class Retries:
    """Event loop only."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[tuple[str, str | None, str], TurnTask] = OrderedDict()

    def add(self, turn: TurnTask) -> None:
        if turn.request.idempotency_key is not None:
            self._by_key[_key(turn.request)] = turn
            while len(self._by_key) > KEPT:
                self._by_key.popitem(last=False)

    def forget(self, session: str) -> None:
        """Nothing of a session that was removed is read again."""
        gone = [key for key, turn in self._by_key.items() if turn.session == session]
        for key in gone:
            del self._by_key[key]

    def forget_turns(self, session: str, numbers: Collection[int]) -> None:
        """Nor are turns that were removed from a session."""
        known = self._by_key.items()
        gone = [k for k, turn in known if turn.session == session and turn.number in numbers]
        for key in gone:
            del self._by_key[key]

    def forget_response(self, response: str) -> None:
        """Nor a response that was deleted."""
        gone = [key for key, turn in self._by_key.items() if turn.request.response_id == response]
        for key in gone:
            del self._by_key[key]

    def find(self, request: TurnRequest, running: Iterable[TurnTask]) -> TurnTask | None:
        """Raises InvalidRequest where a key comes with another request than before."""
        if request.idempotency_key is None:
            wanted = (turn for turn in running if turn.abandoned and _same(turn.request, request))
            return next(wanted, None)
        known = self._by_key.get(_key(request))
        if known is None or known.failed:
            return None
        if not _same(known.request, request):
            raise InvalidRequest(
                "This Idempotency-Key came with another request before.",
                hint="Use a new key for each request.",
                param="Idempotency-Key",
            )
        return known


def _key(request: TurnRequest) -> tuple[str, str | None, str]:
    return request.session.owner, request.session.name, request.idempotency_key or ""


def _same(known: TurnRequest, request: TurnRequest) -> bool:
    return _asked(known) == _asked(request)


def _asked(request: TurnRequest) -> TurnRequest:
    return replace(request, idempotency_key=None, response_id=None, response="{}")
