"""Whatever sessions do, in any order, a reply is that of a model that evaluates everything.

Real llama.cpp on all memory kinds. What comes out of other chunks differs by rounding; a wrong
snapshot or a foreign block differs by much more, or by a few bits, which only the bytes show.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessiond.engine.memory import Tokens
from sessiond.engine.settings import ContextSettings
from sessiond.sessions.turn import Spoken
from tests.daemon.conftest import RigMaker
from tests.daemon.stored_bytes import (
    compared_blocks,
    exported_snapshots,
    same_state,
    stored_snapshots,
)
from tests.rig import Daemon, Reply, Rig

KINDS = ["attention", "swa", "hybrid", "recurrent"]
NAMES = ("one", "two", "three")
FRONT = "Follow" + " the old rule" * 50
SHORT_FRONT = "Follow" + " the old rule" * 10
"""For attention, which has no window cache to be longer than and is the slowest of the models."""
SMALL_RING = {"attention": 1 << 20, "swa": 2 << 20, "hybrid": 500_000, "recurrent": 2_300_000}
SMALL_QUOTA = {"attention": 5 << 20, "swa": 8 << 20, "hybrid": 1 << 20, "recurrent": 3_500_000}
"""Bytes: about four snapshots, and what one or two sessions have on disk."""
MOST_MESSAGES = 14
FRESH = ContextSettings(Path("loaded"), 2048, n_seq_max=1, n_batch=64, n_ubatch=64, threads=1)
Messages = list[dict[str, Any]]


@dataclass
class Worst:
    """Of all replies that were compared."""

    difference: float = 0.0
    flips: int = 0
    replies: int = 0


@dataclass
class Stress:
    """Random clients of one daemon after another on the same files."""

    rig: Rig
    random: random.Random
    daemon: Daemon
    sessions: dict[str, Messages] = field(default_factory=dict)
    worst: Worst = field(default_factory=Worst)
    log: list[str] = field(default_factory=list)

    # --- what clients do

    async def append(self) -> None:
        name, messages = self.pick()
        if len(messages) > MOST_MESSAGES:
            return await self.anew()
        await self.ask(name, [*messages, self.words()])

    async def regenerate(self) -> None:
        name, messages = self.pick()
        await self.ask(name, messages[:-1])

    async def edit(self) -> None:
        name, messages = self.pick()
        await self.ask(name, [*messages[:-2], self.words()])

    async def go_back(self) -> None:
        name, messages = self.pick()
        if len(messages) > 5:
            await self.ask(name, [*messages[:-4], self.words()])

    async def anew(self) -> None:
        missing = [name for name in NAMES if name not in self.sessions]
        name = self.random.choice(missing or NAMES)
        await self.ask(name, [{"role": "system", "content": self.front}, self.words()])

    async def leave(self) -> None:
        """In the middle of the reply, or of the prompt."""
        name, messages = self.pick()
        opened = await self.daemon.open(
            name, [*messages, self.words()], max_tokens=50, ignore_eos=True
        )
        if self.random.random() < 0.7:
            async for event in opened.events:
                if isinstance(event, Spoken):
                    break
        await opened.events.aclose()
        while self.daemon.lifecycle._turns:
            await asyncio.wait(list(self.daemon.lifecycle._turns))

    # --- what happens to them

    async def park(self) -> None:
        await self.daemon.lifecycle.park(self.pick()[0])

    async def resume(self) -> None:
        await self.daemon.lifecycle.resume(self.pick()[0])

    async def restart(self) -> None:
        await self.daemon.stop()
        self.daemon = Daemon(self.rig)
        await self.daemon.start()

    # --- what must be true

    async def step(self) -> None:
        operations: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.append, 5),
            (self.regenerate, 2),
            (self.edit, 2),
            (self.go_back, 2),
            (self.anew, 2),
            (self.leave, 1),
            (self.park, 1),
            (self.resume, 1),
            (self.restart, 1),
        ]
        chosen = [operation for operation, _ in operations]
        weights = [weight for _, weight in operations]
        (operation,) = self.random.choices(chosen, weights)
        if not self.sessions:
            operation = self.anew
        self.log.append(operation.__name__)
        await operation()
        self.books()

    def books(self) -> None:
        machine = self.daemon.machine
        machine.checkpoints._ring.check_integrity(deep=True)
        machine.store.check_integrity()
        assert machine.checkpoints.stats.bytes <= self.rig.ring
        assert machine.store.usage().bytes <= self.rig.quota

    async def ask(self, name: str, messages: Messages) -> None:
        reply = await self.daemon.say(name, messages, max_tokens=3)
        self.sessions[name] = [*messages, {"role": "assistant", "content": reply.text}]
        tree = await self.daemon.lifecycle._register.tree(name)
        prompt = tree.path_tokens(reply.report.turn)[: reply.report.prompt_tokens]
        self.compare(reply, await evaluated_from_scratch(self.daemon, prompt))

    def compare(self, reply: Reply, expected: np.ndarray) -> None:
        """A greedy reply turns only where the two best tokens are as close as rounding."""
        got, said = reply.logits[0], (self.log, reply.report)
        difference = float(np.abs(got - expected).max())
        relative = difference / max(1e-9, float(np.abs(expected).max()))
        self.worst.replies += 1
        self.worst.difference = max(self.worst.difference, relative)
        assert relative <= 0.2, said
        if got.argmax() != expected.argmax():
            second, best = np.sort(expected)[-2:]
            self.worst.flips += 1
            assert best - second <= 4 * difference, said

    async def bytes_are_those_on_disk(self) -> None:
        """After a restart what stands in the context came from disk, and exports to the same."""
        await self.restart()
        for name in self.sessions:
            report = await self.daemon.lifecycle.resume(name)
            view = max(await self.daemon.machine.engine.views(), key=lambda view: view.last_used)
            await compared_blocks(self.daemon, view, report.tokens - report.prefilled_tokens)
            if not report.prefilled_tokens and self.daemon.machine.memory.needs_snapshot:
                exported = await exported_snapshots(self.daemon, view)
                for kept in stored_snapshots(self.daemon, view.tokens):
                    assert any(same_state(kept, other) for other in exported), self.log
            self.books()

    # --- inside

    @property
    def front(self) -> str:
        return FRONT if self.daemon.machine.memory.needs_snapshot else SHORT_FRONT

    def pick(self) -> tuple[str, Messages]:
        name = self.random.choice(sorted(self.sessions))
        return name, self.sessions[name]

    def words(self) -> dict[str, Any]:
        text = " ".join(
            str(self.random.randrange(1000)) for _ in range(self.random.randrange(1, 9))
        )
        return {"role": "user", "content": f"Say {text}."}


async def evaluated_from_scratch(daemon: Daemon, prompt: Tokens) -> np.ndarray:
    """Logits after `prompt` in a context that has never held anything else; shape (n_vocab,)."""
    from sessiond.engine.llama import LlamaContext

    def evaluate(core: Any) -> np.ndarray:
        context = LlamaContext(core.model, FRESH)
        try:
            for at in range(0, len(prompt), context.n_batch):
                context.decode(prompt[at : at + context.n_batch], at, 0, logits=True)
            return context.logits(-1).copy()
        finally:
            context.close()

    return await daemon.machine.engine.call(evaluate)


async def stressed(rig: Rig, seed: int, steps: int) -> Worst:
    daemon = Daemon(rig)
    await daemon.start()
    stress = Stress(rig, random.Random(seed), daemon)
    try:
        for _ in range(steps):
            await stress.step()
        await stress.bytes_are_those_on_disk()
    finally:
        await stress.daemon.stop()
    return stress.worst


def rig_for(rig_of: RigMaker, kind: str, seed: int) -> Rig:
    """Odd seeds get few lines and cells, and little room in memory and on disk."""
    small = bool(seed % 2)
    lines, n_ctx = (2, 768) if small else (3, 2048)
    rig = rig_of(kind, narrow=True, lines=lines, n_ctx=n_ctx)
    if small:
        rig.ring, rig.quota = SMALL_RING[kind], SMALL_QUOTA[kind]
    return rig


@pytest.mark.parametrize("kind", KINDS)
async def test_random_operations(rig_of: RigMaker, kind: str) -> None:
    worst = await stressed(rig_for(rig_of, kind, seed=1), seed=1, steps=15)
    assert worst.replies > 5


@pytest.mark.proof_state
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
async def test_random_operations_for_long(rig_of: RigMaker, kind: str, seed: int) -> None:
    worst = await stressed(rig_for(rig_of, kind, seed), seed, steps=300)
    assert worst.replies > 150
