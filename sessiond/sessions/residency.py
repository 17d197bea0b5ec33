"""Which lines are in the context: finds a sequence and cells for a turn by parking idle lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from sessiond.engine.core import EngineCore
from sessiond.engine.landing import Landing
from sessiond.engine.sequence import Owner, SequenceView, whose
from sessiond.engine.thread import Engine
from sessiond.errors import PoolFull
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.sessions.plan import Plan, Resident
from sessiond.sessions.saver import Saver
from sessiond.store.chain import Kind


class Residency:
    """Event loop only, and under `lock`. Parking saves a line before it leaves the context."""

    def __init__(self, engine: Engine, saver: Saver, checkpoints: Checkpoints) -> None:
        self.lock = asyncio.Lock()
        self._engine = engine
        self._saver = saver
        self._checkpoints = checkpoints

    async def residents(self, owner: Owner) -> list[Resident]:
        """Every line in the context that `owner` may go on from: none of other keys."""
        return [
            as_resident(view, own=view.owner is not None and view.owner.session == owner.session)
            for view in await self._engine.views()
            if len(view.tokens) and whose(view.owner) == owner.whose
        ]

    async def claim(self, plan: Plan, owner: Owner, cells: int) -> Landing:
        """Choose the sequence for a plan that will need `cells` more cells, and make room for it.

        Raises PoolFull where running lines leave no room; idle lines may have been parked then.
        """
        enough = await self._free_cells(cells, spared={plan.source})
        seq = plan.source if plan.in_place and plan.source is not None else None
        if seq is None:
            seq = await self._empty_sequence(spared=plan.source, beside_it=enough)
        return Landing(
            seq=seq,
            position=plan.position,
            source=plan.source,
            keep=plan.keep,
            blocks=plan.blocks,
            snapshot=plan.snapshot.key if plan.snapshot else None,
            whole=plan.snapshot is not None and plan.snapshot.kind is Kind.WHOLE,
            owner=owner,
        )

    async def expect_cells(self, cells: int) -> None:
        """Raises PoolFull where running lines have taken so many free cells meanwhile."""
        free = await self._engine.call(lambda core: core.free_cells())
        if free < cells and any(view.running for view in await self._engine.views()):
            raise PoolFull("Running lines have taken the cells.")

    async def park_one(self, spared: set[int | None]) -> bool:
        """Park the idle line used longest ago. False if there is none but those `spared`."""
        idle = _idle(await self._engine.views(), spared)
        if not idle:
            return False
        await self.park(idle[0])
        return True

    async def park_idle(self, seconds: float) -> int:
        """Park the lines that were not used for so long; how many those were."""
        before = time.monotonic() - seconds
        idle = [v for v in _idle(await self._engine.views(), set()) if v.last_used < before]
        for view in idle:
            await self.park(view)
        return len(idle)

    async def park(self, view: SequenceView) -> None:
        """Save a line and drop it from the context."""
        await self._saver.save(view, parking=True)
        await self._checkpoints.collect()
        await self._engine.call(lambda core: core.drop(view.seq))

    async def drop_session(self, session: str) -> None:
        """Forget a session's lines without saving them."""
        for view in await self._engine.views():
            if view.owner is not None and view.owner.session == session:
                await self._engine.call(dropping(view.seq))

    async def lines_of(self, session: str) -> list[SequenceView]:
        views = await self._engine.views()
        return [v for v in views if v.owner is not None and v.owner.session == session]

    async def _empty_sequence(self, spared: int | None, *, beside_it: bool) -> int:
        """`beside_it`: there are cells for another line without taking those of `spared`."""
        views = await self._engine.views()
        empty = next((view.seq for view in views if not len(view.tokens)), None)
        if empty is not None and (beside_it or spared is None):
            return empty
        idle = _idle(views, {spared}) or _idle(views, set())
        if not idle and empty is not None:
            return empty
        if not idle:
            raise PoolFull("Every sequence is running a turn.")
        victim = idle[0]
        if victim.seq == spared:
            await self._saver.save(victim, parking=True)
        else:
            await self.park(victim)
        return victim.seq

    async def _free_cells(self, cells: int, spared: set[int | None]) -> bool:
        """Whether there are enough now. Where nothing runs and nothing else is idle there may not
        be. Raises PoolFull where running lines have them.
        """
        while await self._engine.call(lambda core: core.free_cells()) < cells:
            if not await self.park_one(spared):
                if any(view.running for view in await self._engine.views()):
                    raise PoolFull("Running lines need the cells.")
                return False
        return True


def as_resident(view: SequenceView, *, own: bool) -> Resident:
    return Resident(
        seq=view.seq,
        tokens=view.tokens,
        window_start=view.window_start,
        own=own,
        running=view.running,
    )


def _idle(views: Sequence[SequenceView], spared: set[int | None]) -> list[SequenceView]:
    """Idle lines, the one used longest ago first."""
    idle = [v for v in views if len(v.tokens) and not v.running and v.seq not in spared]
    return sorted(idle, key=lambda view: view.last_used)


def dropping(seq: int) -> Callable[[EngineCore], None]:
    return lambda core: core.drop(seq)
