"""Settings that fit a machine: what was seen goes in, what is set comes out. Pure but `observe`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessiond.cli import words
from sessiond.cli.found_models import FoundModel, find_models, read_model
from sessiond.cli.machine import Memory, fit, memory
from sessiond.cli.model_places import places
from sessiond.config.settings import Config
from sessiond.config.settings import Model as ModelSection
from sessiond.config.settings import Server as ServerSection
from sessiond.config.settings import Store as StoreSection
from sessiond.engine.gguf import BrokenGguf
from sessiond.engine.gguf_model import GgufModel
from sessiond.errors import ConfigError

TOKENS = 32_768
"""The context that should fit."""
_GIB = 1 << 30
_LEFT_FREE = 0.1
"""Of a GPU's memory, for what is computed with."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`gpu` is the kind of build that its GPU needs, "" without one; `uses_gpu`: this one is that.
    `disk_free` in bytes, where saved state goes.
    """

    memory: Memory
    cores: int
    disk_free: int
    models: tuple[FoundModel, ...] = ()
    gpu: str = ""
    uses_gpu: bool = False

    @classmethod
    def observe(cls) -> Machine:
        from sessiond.engine.devices import missing_gpu, present_gpu
        from sessiond.engine.llama import physical_cores

        found = [each for each in find_models(places()) if isinstance(each, FoundModel)]
        return cls(
            memory(),
            physical_cores(),
            shutil.disk_usage(_existing(Config().directories().cache)).free,
            tuple(found),
            present_gpu() or "",
            missing_gpu() is None and present_gpu() is not None,
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """`reasons` says why, by `section.key`, for all that was chosen. `remarks` are for people."""

    config: Config
    reasons: dict[str, str]
    remarks: tuple[str, ...] = ()

    def value(self, key: str) -> Any:
        """As a person writes it."""
        section, _, name = key.partition(".")
        return self.config.model_dump(mode="json")[section][name]


@dataclass(slots=True)
class _Choice:
    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def set(self, key: str, value: object, reason: str) -> None:
        self.values[key] = value
        self.reasons[key] = reason

    def of(self, section: str) -> dict[str, Any]:
        return {
            key.partition(".")[2]: value
            for key, value in self.values.items()
            if key.startswith(f"{section}.")
        }


def choose(machine: Machine, model: Path | None = None) -> Chosen:
    """`model` instead of the best of those found. Raises ConfigError where it cannot be read."""
    choice = _Choice()
    choice.set("server.host", "127.0.0.1", "only this machine; others need API keys")
    path, read = _given(model) if model else _best(machine)
    if path is not None:
        why = "given with --model" if model else "the largest found that fits in memory"
        choice.set("model.path", str(path), why)
    _set_gpu(choice, machine, read)
    choice.set("model.threads", machine.cores, "the cores of this machine, without hyperthreads")
    if read is not None:
        _set_cache(choice, machine, read)
    quota = _quota(machine.disk_free)
    choice.set(
        "store.quota", quota, f"a fifth of the free {words.size(machine.disk_free)}, or 50 GiB"
    )
    config = Config(
        server=ServerSection(**choice.of("server")),
        model=ModelSection(**choice.of("model")),
        store=StoreSection(**choice.of("store")),
    )
    return Chosen(config, choice.reasons, tuple(_remarks(machine, read)))


def _given(path: Path) -> tuple[Path, GgufModel]:
    path = path.expanduser().absolute()
    try:
        return path, read_model(path)
    except BrokenGguf as error:
        raise ConfigError(f"{path} cannot be served: {error}.", param="--model") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", param="--model") from error


def _best(machine: Machine) -> tuple[Path | None, GgufModel | None]:
    """The largest that fits and can chat."""
    fitting = [
        each
        for each in machine.models
        if each.model.template and fit(each.model, TOKENS, _room(machine.memory), *_SMALL).fits
    ]
    best = max(fitting, key=lambda each: each.model.size, default=None)
    return (best.path, best.model) if best else (None, None)


def _set_gpu(choice: _Choice, machine: Machine, model: GgufModel | None) -> None:
    if not machine.uses_gpu:
        return
    if model is None or not machine.memory.gpu:
        choice.set("model.n_gpu_layers", -1, "all: there is a GPU")
    else:
        layers = gpu_layers(model, machine.memory.gpu)
        size = words.size(machine.memory.gpu)
        why = "all fit" if layers < 0 else f"so many of {model.layers} fit"
        choice.set("model.n_gpu_layers", layers, f"{why} into the {size} of the GPU")


def gpu_layers(model: GgufModel, room: int) -> int:
    """As many as fit beside their share of the context, -1 for all."""
    needed = fit(model, TOKENS, room).needed
    usable = int(room * (1 - _LEFT_FREE))
    return -1 if needed <= usable else model.layers * usable // needed


_SMALL = ("q8_0", "q8_0")


def _set_cache(choice: _Choice, machine: Machine, model: GgufModel) -> None:
    room = _room(machine.memory)
    if fit(model, TOKENS, room).fits or not model.token_bytes():
        return
    why = f"{TOKENS:,} tokens in f16 would not fit beside the model"
    for key in ("model.type_k", "model.type_v"):
        choice.set(key, "q8_0", why)


def _remarks(machine: Machine, model: GgufModel | None) -> Iterator[str]:
    if machine.gpu and not machine.uses_gpu:
        yield f"There is a GPU, but llama.cpp was built without it. Do: make run GPU={machine.gpu}"
    if model is None:
        return
    judged = fit(model, TOKENS, _room(machine.memory), *_SMALL)
    if not judged.fits:
        needed, room = words.size(judged.needed), words.size(judged.available)
        yield f"The model with {judged.tokens:,} tokens needs about {needed}; there are {room}."


def _quota(free: int) -> int | str:
    """Whole GiB where there is one."""
    quota = min(50 * _GIB, free // 5)
    return quota // _GIB * _GIB or quota or "auto"


def _room(found: Memory) -> int:
    return found.available + found.gpu


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
