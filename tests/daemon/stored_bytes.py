"""The oracle of invariant 3: what stands in the context exports to the bytes that are stored."""

from __future__ import annotations

import numpy as np

from sessiond.engine.core import EngineCore
from sessiond.engine.memory import Tokens
from sessiond.engine.sequence import Owner, SequenceView
from tests.daemon.replay import frozen
from tests.rig import Daemon

MOST_CELLS = 64
"""Of a snapshot in these tests: a window of 32 and what lies beside it."""


async def compared_blocks(daemon: Daemon, view: SequenceView, upto: int) -> int:
    """How many stored blocks of the first `upto` tokens were exported again, all with the same
    bytes."""
    machine = daemon.machine
    stored = machine.store.lookup(view.tokens[:upto])
    whole = [block for block in stored.blocks if block.usable == block.length]
    for block in whole:
        exported = await machine.engine.call(
            lambda core, b=block: core.export_block(
                view.seq, view.epoch, b.start, b.start + b.length
            )
        )
        assert bytes(exported) == bytes(machine.store.read(block.key)), (block.start, block.length)
    return len(whole)


async def kept_snapshots(daemon: Daemon, tokens: Tokens) -> list[bytes]:
    """The snapshots at the end of `tokens` in the ring and in the store, those that are there."""
    machine = daemon.machine
    await machine.checkpoints.collect()
    found: list[bytes] = []
    for entry in machine.checkpoints.find(Owner("", 0, ""), tokens):
        if entry.position == len(tokens):
            with machine.checkpoints.lease(entry.key) as payload:
                found.append(bytes(payload))
    return found + stored_snapshots(daemon, tokens)


def stored_snapshots(daemon: Daemon, tokens: Tokens) -> list[bytes]:
    """Those at the end of `tokens` on disk."""
    store = daemon.machine.store
    found = store.lookup(tokens).snapshots
    return [bytes(store.read(s.key)) for s in found if s.position == len(tokens)]


async def exported_snapshots(daemon: Daemon, view: SequenceView) -> list[bytes]:
    """As each spare exports it: the sequence id is part of the bytes."""

    def export(core: EngineCore) -> list[bytes]:
        return frozen(core, view.seq)

    return await daemon.machine.engine.call(export)


def same_state(one: bytes, other: bytes) -> bool:
    """Whether two snapshots are equal but for the sequence that they were exported from.

    Its id is a byte of every cell. The cells of a window may stand in another order, so what is
    compared is how often every byte occurs.
    """
    a, b = (np.bincount(np.frombuffer(x, np.uint8), minlength=256) for x in (one, other))
    moved = np.abs(a - b)
    return len(one) == len(other) and np.count_nonzero(moved) <= 2 and moved.max() <= MOST_CELLS
