"""The check of everything that is stored: state and ledger."""

from __future__ import annotations

import asyncio

from sessiond.sessions.register import Register
from sessiond.sessions.turn import VerifyReport
from sessiond.store.store import Store


async def verify(store: Store, register: Register) -> VerifyReport:
    """Reads everything. Raises StoreFailed, LedgerError."""
    found = await asyncio.to_thread(store.verify)
    return VerifyReport(
        blocks=found.blocks,
        snapshots=found.snapshots,
        bytes=found.bytes,
        damaged=found.damaged,
        missing=found.missing,
        turns=await register.count_turns(),
        unsaved_turns=register.unsaved,
    )
