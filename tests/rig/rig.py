"""Start it, talk to it, stop it (or drop it as `kill -9` would), start it again on its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.context import Context, Model
from sessiond.engine.core import SPARES
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Memory
from sessiond.engine.probe import Verdict
from sessiond.engine.sampling import Ending, Sampling
from sessiond.engine.settings import ContextSettings
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
from sessiond.sessions.rules import Rules
from sessiond.sessions.saver import Saver
from sessiond.sessions.transcript import Content, Text, read_chat
from sessiond.sessions.turn import Finished, OpenTurn, SessionRef, TurnReport, TurnRequest
from sessiond.store.ring import Ring
from sessiond.store.store import Store

GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class Reply:
    text: str
    report: TurnReport
    logits: list[np.ndarray]
    """One row per sampled token, shape (n_vocab,)."""


class RecordingContext:
    """Passes everything on and keeps the logits of every sampled row."""

    def __init__(self, context: Context, rows: list[np.ndarray]) -> None:
        self._context = context
        self.rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def sampler(self, *arguments: Any) -> Any:
        sampler, context, rows = self._context.sampler(*arguments), self._context, self.rows

        class Recording:
            def sample(self, row: int) -> int:
                rows.append(context.logits(row).copy())
                return sampler.sample(row)

            def close(self) -> None:
                sampler.close()

        return Recording()


Opener = Callable[[], tuple[Model, Context]]


def fake(memory: Memory, *, lines: int = 4, n_ctx: int = 1 << 16, **options: Any) -> Opener:
    """A FakeEngine of this memory kind; `options` go to FakeModel."""

    def open_() -> tuple[Model, Context]:
        model = FakeModel(memory, **options)
        return model, FakeContext(model, n_ctx=n_ctx, n_seq_max=lines + SPARES)

    return open_


def real(path: Path, *, lines: int = 4, n_ctx: int = 4096, **options: Any) -> Opener:
    """llama.cpp on a GGUF; `options` go to ContextSettings. One thread, unless they say otherwise:
    tests run beside each other, and llama.cpp's threads spin while they wait for one another.
    """
    from sessiond.engine.llama import LlamaContext, LlamaModel, start_backend

    options = {"threads": 1} | options
    settings = ContextSettings(model=path, n_ctx=n_ctx, n_seq_max=lines + SPARES, **options)

    def open_() -> tuple[Model, Context]:
        start_backend()
        model = LlamaModel(settings)
        return model, LlamaContext(model, settings)

    return open_


@dataclass
class Rig:
    """What stays over a restart. Change a field between two daemons to change the world."""

    directory: Path
    open_engine: Opener
    fingerprint: Fingerprint = field(
        default_factory=lambda: Fingerprint("model", "library", "settings")
    )
    template: str | None = None
    quota: int = 1 << 34
    ring: int = 1 << 30
    limits: Limits = field(default_factory=lambda: Limits(drain=5.0))
    rules: Rules = field(default_factory=Rules)
    whole: bool = False
    tokenizer: str | None = None
    tool_format: str = ""
    limit: int | None = None
    """The most tokens of one line; else what the context and the model allow."""

    @asynccontextmanager
    async def daemon(self, *, kill: bool = False) -> AsyncGenerator[Daemon, None]:
        """`kill`: leave like `kill -9`, with nothing flushed. Else like SIGTERM."""
        daemon = Daemon(self)
        await daemon.start()
        try:
            yield daemon
        finally:
            await (daemon.kill() if kill else daemon.stop())


class Daemon:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.ledger = Ledger(rig.directory / "ledger.sqlite")
        self.lifecycle = Lifecycle(Register(self.ledger), self._load, rig.limits, rig.rules)
        self.machine: Machine
        self.context: RecordingContext
        self._store: Store | None = None
        self._contexts: list[RecordingContext] = []

    async def start(self) -> None:
        await self.lifecycle.start()
        await self.lifecycle.loaded()

    async def stop(self) -> None:
        await self.lifecycle.stop()

    async def kill(self) -> None:
        """Nothing is written any more; only what the process holds is let go."""
        await self.lifecycle._pins.close()
        chores = (self.lifecycle._housekeeping, *self.lifecycle._chores.tasks)
        tasks = [*chores, *self.lifecycle._turns]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.machine.engine.stop()
        self.machine.saver.close()
        self.machine.checkpoints.close()
        self.machine.store.close()
        await self.lifecycle._register.close()

    @property
    def evaluated(self) -> int:
        """Tokens that FakeContexts have evaluated so far, prompts and replies."""
        contexts = [recording._context for recording in self._contexts]
        return sum(context.evaluated for context in contexts)  # type: ignore[attr-defined]

    @property
    def loads(self) -> int:
        """How often the model was loaded."""
        return len(self._contexts)

    @property
    def _rows(self) -> list[np.ndarray]:
        """None yet while the model loads."""
        return self.context.rows if hasattr(self, "context") else []

    async def open(
        self,
        session: str | None,
        messages: Sequence[dict[str, Any]] | str,
        *,
        max_tokens: int | None = 12,
        sampling: Sampling = GREEDY,
        stop: tuple[str, ...] = (),
        logprobs: int | None = None,
        named: bool = True,
        ignore_eos: bool = False,
        tools: Sequence[dict[str, Any]] = (),
        policy: str | None = None,
        compact: bool = False,
        parent: str | None = None,
    ) -> OpenTurn:
        """One turn, admitted. A string is a raw completion."""
        content: Content = (
            Text(messages) if isinstance(messages, str) else read_chat(list(messages), list(tools))
        )
        request = TurnRequest(
            SessionRef(session, named=named and session is not None, parent=parent),
            content,
            sampling,
            Ending(max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos),
            logprobs,
            policy,
            compact,
        )
        return await self.lifecycle.open(request)

    async def say(
        self,
        session: str | None,
        messages: Sequence[dict[str, Any]] | str,
        *,
        max_tokens: int | None = 12,
        sampling: Sampling = GREEDY,
        stop: tuple[str, ...] = (),
        logprobs: int | None = None,
        named: bool = True,
        tools: Sequence[dict[str, Any]] = (),
        policy: str | None = None,
        compact: bool = False,
        ignore_eos: bool = False,
        parent: str | None = None,
    ) -> Reply:
        """One turn to its end. A string is a raw completion."""
        opened = await self.open(
            session,
            messages,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            logprobs=logprobs,
            named=named,
            tools=tools,
            policy=policy,
            compact=compact,
            ignore_eos=ignore_eos,
            parent=parent,
        )
        before = len(self._rows)
        finished: Finished | None = None
        async for event in opened.events:
            if isinstance(event, Finished):
                finished = event
        assert finished is not None, "the turn did not finish"
        return Reply(finished.text, finished.report, self._rows[before:])

    def _opened(self, fingerprint: str) -> Store:
        """The store stays open when the model leaves memory, as the real loader has it."""
        if self._store is None:
            self._store = Store(
                self._rig.directory / "cache",
                self._rig.directory / "index.sqlite",
                fingerprint=fingerprint,
                quota=self._rig.quota,
                keep_free=0,
            )
        return self._store.under(fingerprint)

    async def _load(self) -> Loaded:
        rig = self._rig

        def open_() -> tuple[Model, Context]:
            model, context = rig.open_engine()
            self.context = RecordingContext(context, self._rows)
            self._contexts.append(self.context)
            return model, self.context  # type: ignore[return-value]

        engine = Engine(open_)
        await engine.start()
        info = engine.model.info
        store = self._opened(rig.fingerprint.value)
        ring = Ring(rig.ring, rig.fingerprint.value)
        checkpoints = Checkpoints(engine, ring, store)
        saver = Saver(engine, store, checkpoints, info.memory, whole=rig.whole)
        n_ctx = engine.core.context.n_ctx
        self.machine = Machine(
            engine=engine,
            store=store,
            saver=saver,
            checkpoints=checkpoints,
            residency=Residency(engine, saver, checkpoints),
            memory=info.memory,
            fingerprint=rig.fingerprint,
            rates=Rates(),
            limit=rig.limit or min(n_ctx, info.n_ctx_train),
        )
        source = rig.template or info.chat_template
        return Loaded(
            machine=self.machine,
            renderer=TemplateRenderer(
                engine.model, ChatTemplate(source) if source else None, rig.tool_format
            ),
            tokenizer=rig.tokenizer or info.tokenizer,
            model=info.name,
            n_ctx=n_ctx,
            n_ctx_train=info.n_ctx_train,
            verdict=Verdict("whole" if rig.whole else "blocks", "", 0, 0, 0),
        )
