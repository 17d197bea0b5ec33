"""A session's main line brought back into the context, as far as the next turn can use it."""

from __future__ import annotations

import time

from sessiond.elapsed import ms_since
from sessiond.engine.sequence import Owner
from sessiond.sessions.composition import resumed
from sessiond.sessions.execution import Execution
from sessiond.sessions.miss import find_miss
from sessiond.sessions.plan import source_of
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.turn import ResumeReport
from sessiond.sessions.turn_task import Workshop


async def resume(record: SessionRecord, shop: Workshop, predicted_ms: float) -> ResumeReport:
    """With a place on the floor. Raises LedgerError, EngineError, TemplateError."""
    tree, machine = await shop.register.tree(record.name), shop.machine
    leaf = tree.main_line(time.time())
    if leaf is None:
        return ResumeReport(record.name, "new", 0, 0, 0, 0.0, 0.0)
    now = record.clock
    composed = resumed(tree, leaf, shop.renderer, shop.tokenizer, now)
    owner = Owner(record.id, tree.path(leaf)[0].number, record.owner)
    began = time.monotonic()
    outcome = await Execution(machine, shop.floor, owner, composed.prompt).land_and_evaluate()
    elapsed = ms_since(began)
    plan = outcome.landed.plan
    return ResumeReport(
        session=record.name,
        source=source_of(plan, known=True),
        tokens=len(composed.prompt),
        restored_tokens=min(plan.restored, plan.position),
        prefilled_tokens=outcome.ended.prefilled,
        restore_ms=elapsed,
        predicted_ms=predicted_ms,
        miss=find_miss(composed, outcome.landed, machine.memory, machine.fingerprint),
    )
