"""Is there a GPU, and can this build of llama.cpp use it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sessiond.cli.doctor.finding import Finding, note, ok, problem, warning


@dataclass(frozen=True, slots=True)
class Facts:
    """`present` is the kind of build that fits, "" without a GPU. `version` of llama-cpp-python is
    "" where it cannot be imported, for the reason in `error`. `flash`: flash attention is on, and
    nothing else in the settings needs it.
    """

    present: str
    offloads: bool
    layers: int
    version: str
    error: str = ""
    flash: bool = False

    @property
    def used(self) -> bool:
        return bool(self.present) and self.offloads and self.layers != 0


def observe(layers: int, *, flash: bool) -> Facts:
    from importlib import metadata

    from sessiond.engine.devices import missing_gpu, present_gpu

    present = present_gpu() or ""
    try:
        return Facts(
            present,
            present == "" or missing_gpu() is None,
            layers,
            metadata.version("llama-cpp-python"),
            flash=flash,
        )
    except (ImportError, OSError, RuntimeError, metadata.PackageNotFoundError) as error:
        return Facts(present, False, layers, "", str(error))


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.version:
        yield problem(
            "llama.cpp",
            f"cannot be loaded: {facts.error}",
            "The daemon cannot start.",
            "make run (builds it anew)",
        )
        return
    yield ok("llama.cpp", f"llama-cpp-python {facts.version}")
    if not facts.present:
        yield ok("gpu", "none; the CPU computes")
    elif not facts.offloads:
        yield warning(
            "gpu",
            f"there is one, but llama.cpp was built without {facts.present}",
            "Everything is computed on the CPU, many times slower.",
            f"make run GPU={facts.present}",
        )
    elif facts.layers == 0:
        yield note(
            "gpu",
            f"there is one ({facts.present}), and model.n_gpu_layers = 0",
            "It is not used for the model.",
            "model.n_gpu_layers = -1",
        )
    else:
        layers = "all layers" if facts.layers < 0 else f"{facts.layers} layers"
        yield ok("gpu", f"{facts.present}, {layers}")
    if facts.flash and not facts.used:
        yield note(
            "attention",
            "model.flash_attn = true, and the CPU computes",
            "Turns of fewer than 64 new tokens, and long replies, may take several times as long"
            " as without it. Off, it takes more memory in a long context, and saved state is"
            " evaluated anew, once.",
            "model.flash_attn = false",
        )
