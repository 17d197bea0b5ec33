"""What is told of a rewrite of history, refused or let through, and kept for `explain`."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Literal

from sessiond.errors import InvalidRequest
from sessiond.sessions.cause import Cause

Outcome = Literal["compacted", "rewound", "forked", "refused"]

KEPT = 16
KEPT_SESSIONS = 256


@dataclass(frozen=True, slots=True)
class FirstDiff:
    """`message` and `char` count from 0; `token` is the position of the first that differs."""

    message: int
    role: str
    field: str
    char: int
    token: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """One rewrite, refused or let through. Tokens and milliseconds; `created` in Unix seconds.

    `turn` is None for a refusal. `sentence` says what changed, `message` that it was not sent, too.
    `leaf` is the last turn of the line that is rewritten.
    """

    turn: int | None
    outcome: Outcome
    cause: Cause
    sentence: str
    message: str
    param: str
    first_diff: FirstDiff
    before: str
    after: str
    session_tokens: int
    reusable_tokens: int
    discarded_tokens: int
    estimated_prefill_ms: float
    ways: tuple[str, ...]
    created: float
    leaf: int = 0


class ContextEditRejected(InvalidRequest):
    """The request rewrites history that only accepts additions. Nothing has changed."""

    code = "context_edit_rejected"

    def __init__(self, session: str, explanation: Explanation) -> None:
        super().__init__(explanation.message, param=explanation.param)
        self.session = session
        self.explanation = explanation


class Explanations:
    """The last rewrites of each session, in memory. Event loop only."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Explanation]] = OrderedDict()

    def add(self, session: str, explanation: Explanation) -> None:
        """`session` is an id."""
        kept = self._of.setdefault(session, deque(maxlen=KEPT))
        kept.append(explanation)
        self._of.move_to_end(session)
        if len(self._of) > KEPT_SESSIONS:
            self._of.popitem(last=False)

    def of(self, session: str) -> tuple[Explanation, ...]:
        """The oldest comes first."""
        return tuple(self._of.get(session, ()))
