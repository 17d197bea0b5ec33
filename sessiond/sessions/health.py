"""How the daemon is, and what it has loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from sessiond.engine.probe import Verdict
from sessiond.sessions.lander import Machine
from sessiond.sessions.prompt import PromptRenderer
from sessiond.sessions.shelf import Shelf
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
    def shelf(self) -> Shelf:
        return self.machine.shelf

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.machine.engine.model, self.renderer, self.served)

    @property
    def served(self) -> Served:
        machine, engine = self.machine, self.machine.engine
        info, lines = engine.model.info, len(engine.core.sequences)
        return Served(
            self.model, self.path, self.template, machine.limit, lines, info.bos, info.eos
        )

    @property
    def facts(self) -> Facts:
        kind = str(self.machine.memory.kind)
        return Facts(self.served, kind, self.n_ctx, self.n_ctx_train, self.verdict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What stays known of a model while it is not in memory. Lengths in tokens."""

    served: Served
    memory_kind: str
    n_ctx: int
    n_ctx_train: int
    verdict: Verdict


class Host(Protocol):
    """What there is of a model: `facts` and `shelf` from the first load on."""

    loaded: Loaded | None
    facts: Facts | None
    shelf: Shelf | None
    progress: float | None


@dataclass(frozen=True, slots=True)
class Warmth:
    """Sessions that wait to be read again or are; those that were, and the tokens that took."""

    waiting: int = 0
    sessions: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Turns that run, wait, or are not in the ledger yet; sessions."""

    running: int
    queued: int
    sessions: int
    unsaved: int


@dataclass(frozen=True, slots=True)
class Glance:
    """`silence`: seconds since the engine last finished something, 0.0 where it is idle or there is
    none. `done` changes with whatever gets done on the way to the model, in the engine or on the
    way to the end. `loading`: how far that is, 0 to 1, where it is known.
    """

    status: Status
    model: str | None
    counts: Counts
    silence: float
    done: Hashable
    loading: float | None = None


async def health_of(
    host: Host,
    status: Status,
    detail: str,
    counts: Counts,
    warmth: Warmth,
) -> Health:
    facts, loaded, shelf = host.facts, host.loaded, host.shelf
    usage = await asyncio.to_thread(shelf.store.usage) if shelf else None
    staging = loaded.machine.engine.core.staging if loaded else None
    ring = loaded.machine.checkpoints.stats if loaded else None
    return Health(
        status=status,
        detail=detail,
        model=facts.served.model if facts else None,
        memory_kind=facts.memory_kind if facts else None,
        n_ctx=facts.n_ctx if facts else None,
        n_ctx_train=facts.n_ctx_train if facts else None,
        codec=facts.verdict.codec if facts else None,
        codec_detail=facts.verdict.detail if facts else "",
        staging=str(staging.kind) if staging else "none",
        staging_detail=staging.detail if staging else "",
        ring_bytes=ring.bytes if ring else 0,
        ring_budget=ring.budget if ring else 0,
        ring_entries=ring.entries if ring else 0,
        resident_lines=loaded.machine.engine.core.resident if loaded else 0,
        max_lines=facts.served.lines if facts else 0,
        running=counts.running,
        queued=counts.queued,
        sessions=counts.sessions,
        unsaved_turns=counts.unsaved,
        disk_bytes=usage.bytes if usage else 0,
        disk_quota=usage.quota if usage else 0,
        loading_progress=None if loaded else host.progress,
        warming=warmth.waiting,
        warmed_sessions=warmth.sessions,
        warmed_tokens=warmth.tokens,
        resident_sessions=_resident(loaded.machine) if loaded else 0,
    )


def _resident(machine: Machine) -> int:
    """Sessions that have a line in the context. What the engine does meanwhile may be missed."""
    sequences = machine.engine.core.sequences
    return len({owner.session for s in sequences if len(s) and (owner := s.owner) is not None})
