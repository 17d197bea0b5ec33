"""A sub-agent goes on from its parent's turns: with the very tokens, reasoning too, not with others
that its transcript would be made of.

Its session begins as a copy of the path the first request extends. Where it extends none, what the
two have in common is found as between any sessions, by their tokens.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from sessiond.errors import LedgerError
from sessiond.sessions.register import Register
from sessiond.sessions.rules import Rules
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree
from sessiond.sessions.turn import TurnRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a session that is not yet begins with: `record`, and the turns in `tree`.

    In memory only; the turns are written with the first one of its own.
    """

    record: SessionRecord
    tree: SessionTree


async def inheritance(
    register: Register, rules: Rules, name: str, request: TurnRequest
) -> Inheritance | None:
    """None for a session that exists, has no parent, or says something else from the beginning.

    Does not yield to the loop for these. Event loop only; changes nothing.
    """
    parent = request.session.parent
    if parent is None or parent not in register or name in register:
        return None
    source = register[parent]
    try:
        tree = await register.tree(parent)
    except LedgerError as error:
        logger.warning("A parent's turns are passed over: %s", error)
        return None
    names = rules.pinned_front_of(source)
    pinned = register.fronts.pin(source, request.content, names, tree)
    match = tree.match(pinned.content if pinned else request.content)
    if match.turn is None:
        return None
    return Inheritance(_child(source, name, request), path_of(tree, match.turn))


def path_of(tree: SessionTree, turn: int) -> SessionTree:
    """A tree of one line, which ends with the turn. A response stays with the session it is of."""
    line = SessionTree()
    for step in tree.path(turn):
        line.add(replace(step, response_id=None, response=None))
    return line


def _child(source: SessionRecord, name: str, request: TurnRequest) -> SessionRecord:
    """With the parent's clock and pinned front, with which its turns were rendered."""
    ref = request.session
    new = SessionRecord.new(name, time.time(), named=ref.named, agent=ref.agent)
    return replace(new, created=source.created, pinned_front=source.pinned_front)
