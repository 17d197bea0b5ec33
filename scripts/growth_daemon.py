"""A daemon's inside over a synthetic past, with the fake engine and nothing in its context."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from scripts import growth_world
from scripts.growth_world import FINGERPRINT
from sessiond.chat.renderer import TemplateRenderer
from sessiond.engine.context import Context, Model
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.memory import Memory, MemoryKind
from sessiond.engine.probe import Verdict
from sessiond.engine.thread import Engine
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.sessions.health import Loaded
from sessiond.sessions.lander import Machine
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.lifecycle import Lifecycle
from sessiond.sessions.limits import Limits
from sessiond.sessions.rates import Rates
from sessiond.sessions.register import Register
from sessiond.sessions.residency import Residency
from sessiond.sessions.saver import Saver
from sessiond.store.ring import Ring
from sessiond.store.store import Store

_MEMORY = Memory(MemoryKind.ATTENTION)
_LINES = 16
_QUOTA = 1 << 50


class World:
    """A daemon's lifecycle over a synthetic past; the store is opened when it is told to load."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.machine: Machine
        self.store_open = 0.0
        began = time.perf_counter()
        ledger = Ledger(folder / growth_world.LEDGER)
        self.ledger_open = (time.perf_counter() - began) * 1e3
        self.lifecycle = Lifecycle(Register(ledger), self._load, Limits())

    async def start(self) -> None:
        began = time.perf_counter()
        await self.lifecycle.start()
        self.ledger_open += (time.perf_counter() - began) * 1e3
        await self.lifecycle.loaded()

    async def _load(self) -> Loaded:
        engine = Engine(_fake_engine)
        await engine.start()
        began = time.perf_counter()
        store = await asyncio.to_thread(open_store, self._folder)
        self.store_open = (time.perf_counter() - began) * 1e3
        ring = Ring(0, FINGERPRINT.value)
        checkpoints = Checkpoints(engine, ring, store)
        saver = Saver(engine, store, checkpoints, _MEMORY, whole=False)
        self.machine = Machine(
            engine=engine,
            store=store,
            saver=saver,
            checkpoints=checkpoints,
            residency=Residency(engine, saver, checkpoints),
            memory=_MEMORY,
            fingerprint=FINGERPRINT,
            rates=Rates(),
            limit=engine.core.context.n_ctx,
        )
        renderer = TemplateRenderer(engine.model, None)
        verdict = Verdict("blocks", "", 0, 0, 0)
        n_ctx = engine.core.context.n_ctx
        return Loaded(self.machine, renderer, "tokenizer", "fake", n_ctx, n_ctx, verdict)


def open_store(folder: Path) -> Store:
    return Store(
        folder / growth_world.CACHE,
        folder / growth_world.INDEX,
        fingerprint=FINGERPRINT.value,
        quota=_QUOTA,
        keep_free=0,
    )


def _fake_engine() -> tuple[Model, Context]:
    model = FakeModel(_MEMORY)
    return model, FakeContext(model, n_ctx=1 << 17, n_seq_max=_LINES)
