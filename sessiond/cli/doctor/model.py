"""The model's file: is it there, is it whole, does it fit?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sessiond.cli import words
from sessiond.cli.doctor.finding import Finding, note, ok, problem, warning
from sessiond.cli.found_models import read_model
from sessiond.cli.machine import Memory, fit
from sessiond.config.settings import Config
from sessiond.engine.gguf import BrokenGguf
from sessiond.engine.gguf_model import GgufModel
from sessiond.engine.probe import Verdict
from sessiond.errors import ConfigError
from sessiond.sessions.sizing import pool_tokens

LEAST_TOKENS = 2048
"""The daemon offers no smaller context."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`error` says why there is no `model`. `tokens` is the wanted context, 0: as many as fit.
    `loaded`: it is in memory already, so that what is available says nothing. `served` is what the
    daemon serves, "" where none runs or tells.
    """

    path: str
    memory: Memory
    model: GgufModel | None = None
    error: str = ""
    tokens: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    loaded: bool = False
    served: str = ""

    @property
    def room(self) -> int:
        """Bytes for weights and context."""
        ram = self.memory.total if self.loaded else self.memory.available
        return ram + self.memory.gpu

    @property
    def context(self) -> int:
        """Tokens of one line, as far as it can be said without loading the model."""
        if self.model is None:
            return 0
        trained = self.model.n_ctx_train
        if self.tokens:
            return min(self.tokens, trained) if trained else self.tokens
        cell = int(self.model.token_bytes(self.type_k, self.type_v))
        left = max(0, self.room - self.model.size)
        return pool_tokens(Verdict("blocks", "", cell, 0, 0), trained, left)


def observe(config: Config, memory: Memory, *, loaded: bool, served: str = "") -> Facts:
    told = config.model
    facts = (told.n_ctx, told.type_k, told.type_v, loaded, served)
    try:
        return Facts(told.path, memory, read_model(told.required_path()), "", *facts)
    except (ConfigError, BrokenGguf) as error:
        return Facts(told.path, memory, None, error.message, *facts)
    except OSError as error:
        return Facts(told.path, memory, None, error.strerror or str(error), *facts)


def judge(facts: Facts) -> Iterator[Finding]:
    model = facts.model
    if model is None and facts.served:
        yield note("model", f"the daemon serves {facts.served}; these settings: {facts.error}")
        return
    if model is None:
        yield problem(
            "model",
            f"{facts.path}: {facts.error}" if facts.path not in facts.error else facts.error,
            "There is nothing to serve.",
            "sessiond models, then sessiond serve --model PATH",
        )
        return
    shape = f"{model.architecture}, {model.quant}, {words.size(model.size)}"
    yield ok("model", f"{facts.path} ({shape}, {model.kind} memory)")
    least = fit(model, facts.tokens or LEAST_TOKENS, facts.room, facts.type_k, facts.type_v)
    needed = f"{words.size(least.needed)} for {least.tokens:,} tokens, {words.size(facts.room)}"
    where = "there" if facts.loaded else "available"
    if least.fits:
        yield ok("memory", f"needs about {needed} {where}")
    else:
        yield warning(
            "memory",
            f"needs about {needed} {where}",
            "The model does not load, or the machine swaps.",
            'a smaller model, a smaller model.n_ctx, or model.type_k = model.type_v = "q8_0"',
        )
