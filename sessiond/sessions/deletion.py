"""What goes with a session, or with some of its turns: lines in the context, and the stored state
that nothing else could use.

State is shared by all sessions whose tokens begin in the same way. Who does is known from their own
state: from the blocks after a shared one, and from the lines in the context. Those that may have
none of their own are asked: forks, those that began with the same words, and those used last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sessiond.engine.memory import Tokens, common_prefix
from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions.lander import Machine
from sessiond.sessions.register import Register
from sessiond.sessions.residency import dropping
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.shelf import Shelf
from sessiond.sessions.tree import SessionTree
from sessiond.store.found import Stored
from sessiond.store.store import Store

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


async def forget_roots(record: SessionRecord, roots: Collection[int], machine: Machine) -> None:
    """With the lock of `residency`: no line that begins with one of these turns is in the context
    afterwards. None of them runs.
    """
    for view in await machine.residency.lines_of(record.id):
        if view.owner is not None and view.owner.root in roots:
            await machine.engine.call(dropping(view.seq))


async def forget_stored(
    record: SessionRecord,
    tree: SessionTree,
    register: Register,
    machine: Shelf,
    gone: Collection[int] | None = None,
) -> None:
    """After these turns of `tree`, or for None the session, have left the register; state of the
    current model. Raises StateError.

    A turn that begins meanwhile, or a session that was not asked, may lose what it could have used;
    that costs prefill, nothing else.
    """
    store = machine.store.of(record.owner)
    lines, kept = _parted(tree, gone)
    if not any([await asyncio.to_thread(_is_stored, store, line.tokens) for line in lines]):
        return
    for tokens in [*kept, *await _others(record, register, machine)]:
        for line in lines:
            line.meet(tokens)
    for line in lines:
        known = [line.tokens, *(other.tokens for other in lines if other is not line)]
        shared = await asyncio.to_thread(store.shared, known)
        line.shared = max(line.shared, shared)
        stored = await asyncio.to_thread(store.lookup, line.tokens)
        await asyncio.to_thread(store.drop, list(line.keys(stored)))


def _parted(tree: SessionTree, gone: Collection[int] | None) -> tuple[list[_Line], list[Tokens]]:
    """The lines that go, and the tokens of those that stay."""
    if gone is None:
        return [_Line(tree.path_tokens(leaf)) for leaf in tree.leaves()], []
    lines = [_Line(tree.path_tokens(leaf)) for leaf in tree.leaves() if leaf in gone]
    standing = [turn.number for turn in tree if turn.number not in gone]
    ends = [n for n in standing if all(child in gone for child in tree.children(n))]
    return lines, [tree.path_tokens(end) for end in ends]


def _is_stored(store: Store, tokens: Tokens) -> bool:
    found = store.lookup(tokens)
    return bool(found.blocks or found.snapshots)


async def _others(record: SessionRecord, register: Register, machine: Shelf) -> list[Tokens]:
    """Lines of the owner's other sessions: those in the context, and of those that are asked."""
    views = await machine.views()
    found = [
        view.tokens
        for view in views
        if view.owner and view.owner.whose == record.owner and view.owner.session != record.id
    ]
    sharing = [other for other in register.records if other.owner == record.owner]
    for other in _asked(record, sharing):
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
