"""How the daemon is, and what it has loaded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sessiond.engine.probe import Verdict
from sessiond.sessions.lander import Machine
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.text import Served, Vocabulary
from sessiond.sessions.turn import Health, Status


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading the model gives. `n_ctx` and `n_ctx_train` in tokens. `path` is the model's
    file, `template` its chat template, "" for none.
    """

    machine: Machine
    renderer: PromptRenderer
    tokenizer: str
    model: str
    n_ctx: int
    n_ctx_train: int
    verdict: Verdict
    path: str = ""
    template: str = ""

    @property
    def vocabulary(self) -> Vocabulary:
        machine, engine = self.machine, self.machine.engine
        lines = len(engine.core.sequences)
        served = Served(self.model, self.path, self.template, machine.limit, lines)
        return Vocabulary(engine.model, self.renderer, served)


@dataclass(frozen=True, slots=True)
class Counts:
    """Turns that run, wait, or are not in the ledger yet; sessions."""

    running: int
    queued: int
    sessions: int
    unsaved: int


async def health_of(
    loaded: Loaded | None, status: Status, detail: str, counts: Counts, progress: float | None
) -> Health:
    """`progress` of loading, 0 to 1."""
    usage = await asyncio.to_thread(loaded.machine.store.usage) if loaded else None
    staging = loaded.machine.engine.core.staging if loaded else None
    ring = loaded.machine.checkpoints.stats if loaded else None
    return Health(
        status=status,
        detail=detail,
        model=loaded.model if loaded else None,
        memory_kind=str(loaded.machine.memory.kind) if loaded else None,
        n_ctx=loaded.n_ctx if loaded else None,
        n_ctx_train=loaded.n_ctx_train if loaded else None,
        codec=loaded.verdict.codec if loaded else None,
        codec_detail=loaded.verdict.detail if loaded else "",
        staging=str(staging.kind) if staging else "none",
        staging_detail=staging.detail if staging else "",
        ring_bytes=ring.bytes if ring else 0,
        ring_budget=ring.budget if ring else 0,
        ring_entries=ring.entries if ring else 0,
        resident_lines=loaded.machine.engine.core.resident if loaded else 0,
        max_lines=len(loaded.machine.engine.core.sequences) if loaded else 0,
        running=counts.running,
        queued=counts.queued,
        sessions=counts.sessions,
        unsaved_turns=counts.unsaved,
        disk_bytes=usage.bytes if usage else 0,
        disk_quota=usage.quota if usage else 0,
        loading_progress=progress,
    )
