"""A session that goes on from a turn of another one."""

from __future__ import annotations

import time
from dataclasses import replace
from uuid import uuid4

from sessiond.errors import Conflict, NotFound
from sessiond.sessions.register import Register


async def fork_session(register: Register, name: str, new: str, at: int | None) -> None:
    """From turn `at`, else the end of the main line.

    Raises SessionNotFound, NotFound for an unknown turn, Conflict if the new name is taken or there
    are no turns yet, LedgerError.
    """
    source, now = register[name], time.time()
    tree = await register.tree(name)
    turn = at if at is not None else tree.main_line(now)
    if turn is None:
        raise Conflict(f"{source.called!r} has no turns yet.", hint="Make a new session instead.")
    if turn not in tree:
        raise NotFound(
            f"{source.called!r} has no turn {turn}.",
            hint=f"See: sessiond show {source.called}",
            param="at",
        )
    record = replace(source.used(now), id=uuid4().hex, name=new, named=True)
    await register.fork(replace(record, pinned=False, may_compact=False), name, turn)
