"""What goes with a session: its lines in the context, and the stored state that only it could use.

State is shared by all sessions whose tokens begin in the same way, so the others are asked first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from sessiond.engine.memory import Tokens, common_prefix
from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions.lander import Machine
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree
from sessiond.store.found import Stored


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


async def forget_stored(tree: SessionTree, register: Register, machine: Machine) -> None:
    """After the session has left the register; state of the current model. Raises StateError.

    A turn that begins meanwhile may lose what it could have used; that costs prefill, nothing else.
    """
    lines = [_Line(tree.path_tokens(leaf)) for leaf in tree.leaves()]
    for record in register.records:
        with suppress(LedgerError, SessionNotFound):
            other = await register.glance(record.name)
            for leaf in other.leaves():
                for line in lines:
                    line.meet(other.path_tokens(leaf))
    for line in lines:
        stored = await asyncio.to_thread(machine.store.lookup, line.tokens)
        await asyncio.to_thread(machine.store.drop, list(line.keys(stored)))
