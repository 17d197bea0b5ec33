"""What goes with a session: its lines in the context, and the stored state that only it could use.

State is shared by all sessions whose tokens begin in the same way. Who does is known from their own
state: from the blocks after a shared one, and from the lines in the context. Those that may have
none of their own are asked: forks, those that began with the same words, and those used last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sessiond.engine.memory import Tokens, common_prefix
from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions.lander import Machine
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree
from sessiond.store.found import Stored

ASKED = 16
"""Sessions whose turns are read at most, of those used last and of those like the removed one."""


@dataclass(slots=True)
class _Line:
    """Others have the first `shared` tokens, too; one of them ends at `ending`, inside the line."""

    tokens: Tokens
    shared: int = 0
    ending: int = 0

    def meet(self, other: Tokens) -> None:
        common = common_prefix(self.tokens, other)
        self.shared = max(self.shared, common)
        if common >= len(other) - 1:  # the last token of a reply may never have been evaluated
            self.ending = max(self.ending, common)

    def keys(self, stored: Stored) -> Iterator[str]:
        """Of the states that no other line can use, children first."""
        for snapshot in stored.snapshots:
            if snapshot.position > self.shared:
                yield snapshot.key
        for block in reversed(stored.blocks):
            if block.start + block.length > self.shared and block.start >= self.ending:
                yield block.key


async def forget_lines(record: SessionRecord, machine: Machine) -> None:
    """With the lock of `residency`. Nothing of the session is in the context or waits to be
    written afterwards.
    """
    await machine.residency.drop_session(record.id)
    await machine.saver.forget(record.id)


async def forget_stored(
    record: SessionRecord, tree: SessionTree, register: Register, machine: Machine
) -> None:
    """After the session has left the register; state of the current model. Raises StateError.

    A turn that begins meanwhile, or a session that was not asked, may lose what it could have used;
    that costs prefill, nothing else.
    """
    lines = [_Line(tree.path_tokens(leaf)) for leaf in tree.leaves()]
    for tokens in await _others(record, register, machine):
        for line in lines:
            line.meet(tokens)
    for line in lines:
        known = [line.tokens, *(other.tokens for other in lines if other is not line)]
        shared = await asyncio.to_thread(machine.store.shared, known)
        line.shared = max(line.shared, shared)
        stored = await asyncio.to_thread(machine.store.lookup, line.tokens)
        await asyncio.to_thread(machine.store.drop, list(line.keys(stored)))


async def _others(record: SessionRecord, register: Register, machine: Machine) -> list[Tokens]:
    """Lines of other sessions: those in the context, and all of the sessions that are asked."""
    views = await machine.engine.views()
    found = [v.tokens for v in views if v.owner and v.owner.session != record.id]
    for other in _asked(record, register.records):
        with suppress(LedgerError, SessionNotFound):
            tree = await register.glance(other.name)
            found += [tree.path_tokens(leaf) for leaf in tree.leaves()]
    return [tokens for tokens in found if len(tokens)]


def _asked(record: SessionRecord, others: Sequence[SessionRecord]) -> list[SessionRecord]:
    """`others`: the most recently used first. A fork was created when its origin was."""
    alike = [
        other
        for other in others[ASKED:]
        if other.created == record.created or (record.title and other.title == record.title)
    ]
    return [*others[:ASKED], *alike[:ASKED]]
