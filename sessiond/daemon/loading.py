"""From a model file to everything a turn needs. Runs while the port is open already."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.config.settings import Config
from sessiond.directories import StateDirs
from sessiond.engine.context import Context, Model, ModelInfo
from sessiond.engine.core import SPARES
from sessiond.engine.fingerprint import DigestCache, Fingerprint, digest_of, fingerprint
from sessiond.engine.memory import Memory, as_tokens
from sessiond.engine.probe import Verdict, probe
from sessiond.engine.settings import ContextSettings
from sessiond.engine.staging import Staging
from sessiond.engine.thread import Engine
from sessiond.errors import ConfigError, EngineError
from sessiond.sessions.checkpoints import Checkpoints
from sessiond.sessions.health import Loaded
from sessiond.sessions.lander import Machine
from sessiond.sessions.rates import Rates
from sessiond.sessions.residency import Residency
from sessiond.sessions.saver import Saver
from sessiond.sessions.sizing import active_lines, pool_tokens, ring_budget, store_quota
from sessiond.store.ring import Ring
from sessiond.store.store import Store
from sessiond.units import Share

logger = logging.getLogger(__name__)
Progress = Callable[[float], None]
_SMALLEST_POOL = 1024
_STAGING_CAP = 512 << 20
"""Most bytes of one staging buffer; a larger snapshot goes through pageable memory."""


class Loader:
    """Loads the model that a config names. `progress` gets 0.0-1.0, from another thread."""

    def __init__(self, config: Config, dirs: StateDirs, progress: Progress) -> None:
        self._config = config
        self._dirs = dirs
        self._progress = progress
        self._digest = DigestCache(dirs.state / "digests.json")
        self._opened: Store | None = None

    async def __call__(self) -> Loaded:
        """May be called again when the engine of the last one has stopped.

        Raises ConfigError, EngineError; nothing stays in memory then.
        """
        wanted = self._wanted()
        verdict = await asyncio.to_thread(self._verdict, wanted)
        engine = Engine(
            lambda: self._open(wanted, verdict),
            lambda: self._staging(verdict),
            self._config.sessions.step_budget * 1e3,
        )
        await engine.start()
        try:
            return await asyncio.to_thread(self._assemble, engine, wanted, verdict)
        except BaseException:
            await engine.stop()
            raise

    def _wanted(self) -> ContextSettings:
        return context_settings(self._config)

    def _verdict(self, settings: ContextSettings) -> Verdict:
        """Of an earlier start with the same model, library and settings, or of a self-test."""
        from sessiond.engine.llama import library_files

        key = digest_of(
            self._digest(settings.model),
            *(self._digest(path) for path in library_files()),
            json.dumps(asdict(settings), default=str, sort_keys=True),
        )
        cache = _VerdictCache(self._dirs.state / "codec.json")
        return cache.get(key) or cache.put(key, probe(settings))

    def _open(self, wanted: ContextSettings, verdict: Verdict) -> tuple[Model, Context]:
        from sessiond.engine.llama import LlamaModel, start_backend

        start_backend()
        model = LlamaModel(wanted, self._progress)
        try:
            return model, self._context(model, wanted, verdict)
        except BaseException:
            model.close()
            raise

    def _context(self, model: Model, wanted: ContextSettings, verdict: Verdict) -> Context:
        available = psutil.virtual_memory().available
        lines = self._config.sessions.max_active or active_lines(
            verdict, model.info.memory, available
        )
        pool = wanted.n_ctx or pool_tokens(verdict, model.info.n_ctx_train, available)
        settings = replace(wanted, n_ctx=pool, n_seq_max=lines + SPARES)
        context = _largest_context(model, settings, shrink=not wanted.n_ctx)
        _warm_up(context)
        return context

    def _assemble(self, engine: Engine, wanted: ContextSettings, verdict: Verdict) -> Loaded:
        info, n_ctx = engine.model.info, engine.core.context.n_ctx
        marks = self._marks(replace(wanted, n_ctx=n_ctx), info)
        store = self._store(marks)
        whole = verdict.codec == "whole"
        ring = Ring(self._ring_budget(verdict, info.memory, whole=whole), marks.value)
        checkpoints = Checkpoints(engine, ring, store)
        saver = Saver(engine, store, checkpoints, info.memory, whole=whole)
        machine = Machine(
            engine=engine,
            store=store,
            saver=saver,
            checkpoints=checkpoints,
            residency=Residency(engine, saver, checkpoints),
            memory=info.memory,
            fingerprint=marks,
            rates=Rates(),
            limit=min(n_ctx, info.n_ctx_train),
        )
        if whole:
            logger.warning("State is saved in one piece, at park and stop only: %s", verdict.detail)
        return Loaded(
            machine=machine,
            renderer=TemplateRenderer(
                engine.model,
                self._template(info.chat_template),
                self._config.model.tool_format,
            ),
            tokenizer=info.tokenizer,
            model=self._config.model.name or info.name,
            n_ctx=n_ctx,
            n_ctx_train=info.n_ctx_train,
            verdict=verdict,
            path=str(wanted.model),
            template=self._template_source(info.chat_template) or "",
        )

    def _marks(self, settings: ContextSettings, info: ModelInfo) -> Fingerprint:
        from sessiond.engine.llama import library_files

        return fingerprint(settings, info, library_files(), self._digest)

    def _staging(self, verdict: Verdict) -> Staging | None:
        """Sized for a snapshot without a window; windows grow, and the buffers with them."""
        if verdict.codec == "whole" or not (verdict.snapshot_bytes or verdict.window_token_bytes):
            return None
        return Staging.open(verdict.snapshot_bytes, _STAGING_CAP)

    def _ring_budget(self, verdict: Verdict, memory: Memory, *, whole: bool) -> int:
        ram, total = self._config.checkpoints.ram, psutil.virtual_memory().total
        if whole or not memory.needs_snapshot:
            return 0
        if ram == "auto":
            return ring_budget(verdict, memory, total)
        return ram.of(total) if isinstance(ram, Share) else ram

    def _template(self, embedded: str | None) -> ChatTemplate | None:
        source = self._template_source(embedded)
        if source is None:
            logger.warning(
                "No chat template in the model: give one with --model-chat-template-file."
            )
        return ChatTemplate(source) if source is not None else None

    def _template_source(self, embedded: str | None) -> str | None:
        file = self._config.model.chat_template_file
        return Path(file).expanduser().read_text() if file else embedded

    def _store(self, marks: Fingerprint) -> Store:
        """Opened once: it stays open when the model leaves memory."""
        if self._opened is None:
            # What is there already counts for a quota that depends on the free space.
            self._opened = Store(
                self._dirs.cache,
                self._dirs.state / "index.sqlite",
                fingerprint=marks.value,
                quota=shutil.disk_usage(self._dirs.cache).total,
                keep_free=0,
            )
            self._opened.resize(*self.store_limits(self._opened.usage().bytes))
        return self._opened.under(marks.value)

    def store_limits(self, used: int) -> tuple[int, int]:
        """The store's quota and what it keeps free, in bytes; `used` are its own already."""
        disk = shutil.disk_usage(self._dirs.cache)
        quota, keep_free = self._config.store.quota, self._config.store.keep_free
        if quota == "auto":
            quota = store_quota(disk.free, used)
        return (
            quota.of(disk.free + used) if isinstance(quota, Share) else quota,
            keep_free.of(disk.total) if isinstance(keep_free, Share) else keep_free,
        )

    def limit_store(self, config: Config) -> None:
        """From now on the store's limits are those of `config`."""
        self._config = self._config.model_copy(update={"store": config.store})


@dataclass(frozen=True, slots=True)
class _VerdictCache:
    path: Path

    def get(self, key: str) -> Verdict | None:
        try:
            known = json.loads(self.path.read_text())
            return Verdict(**known[key])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, verdict: Verdict) -> Verdict:
        try:
            self.path.write_text(json.dumps({key: asdict(verdict)}))
        except OSError as error:
            logger.warning("The self-test's result cannot be kept: %s", error)
        return verdict


def context_settings(config: Config) -> ContextSettings:
    """Raises ConfigError for a `[model.extra]` key that llama.cpp does not have."""
    from sessiond.engine.llama import known_extra

    model = config.model
    for name in model.extra:
        if not known_extra(name):
            raise ConfigError(
                f"model.extra.{name} is not a parameter of this llama.cpp.",
                hint="Remove it, or look up its present name.",
                param=f"model.extra.{name}",
            )
    return ContextSettings(
        model=model.required_path().resolve(),
        n_ctx=model.n_ctx,
        n_seq_max=0,
        n_batch=model.n_batch,
        n_ubatch=model.n_ubatch,
        n_gpu_layers=model.n_gpu_layers,
        threads=model.threads,
        type_k=model.type_k,
        type_v=model.type_v,
        flash_attn=model.flash_attn,
        extra=model.extra,
    )


def _warm_up(context: Context) -> None:
    """Touch every weight once, so that the first request does not wait for the disk."""
    try:
        context.decode(as_tokens([0, 0]), 0, 0, logits=True)
        context.clear()
    except BaseException:
        context.close()
        raise


def _largest_context(model: Model, settings: ContextSettings, *, shrink: bool) -> Context:
    """With `shrink`, half the pool again and again until it fits. Raises EngineError."""
    from sessiond.engine.llama import LlamaContext, LlamaModel

    if not isinstance(model, LlamaModel):
        raise TypeError("a llama.cpp model is needed")
    while True:
        try:
            return LlamaContext(model, settings)
        except EngineError:
            if not shrink or settings.n_ctx <= _SMALLEST_POOL:
                raise
            settings = replace(settings, n_ctx=settings.n_ctx // 2)
            logger.warning("Not enough memory; trying %d tokens.", settings.n_ctx)
