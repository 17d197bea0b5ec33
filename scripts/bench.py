"""What the benchmarks share: models by name, text of known length, options, a place to work in."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from scripts import fetch_models
from scripts.daemon import DaemonFailed
from scripts.fetch_models import FetchError, Model

MODELS: dict[str, Model] = {
    "smollm2": fetch_models.SMOLLM2,
    "hybrid-0.8b": fetch_models.HYBRID_08B,
    "hybrid-tiny": fetch_models.HYBRID_TINY,
    "mamba2-tiny": fetch_models.MAMBA2_TINY,
    "gemma3-270m": fetch_models.GEMMA,
}

MODEL_HELP = "A name of scripts.bench, or the path of a GGUF."
MODELS_HELP = "Names of scripts.bench or paths of GGUFs, with commas."
Quick = Annotated[bool, typer.Option("--quick", help="Small, for a test of the script itself.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Out = Annotated[
    Path | None, typer.Option(help="Keep the document here. Not said: in docs/benchmarks.")
]

# Each is one token of SmolLM2's vocabulary when a space stands before it.
_WORDS = (
    "time people year day way work world life part place case week company system program question "
    "government number night point home water room mother area money story fact month lot right "
    "study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy music"
).split()


def run(command: Callable[..., None]) -> None:
    """Runs a script's command line. What failed in the daemon or the models is told in words.

    SIGTERM ends it as an exception does, so that no daemon is left behind.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        typer.run(command)
    except (DaemonFailed, FetchError) as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")


def words(count: int, seed: str) -> str:
    """`count` words, drawn by `seed`, with a space before each: as many tokens as words."""
    draw = random.Random(seed)
    return "".join(f" {draw.choice(_WORDS)}" for _ in range(count))


def model_path(name: str) -> Path:
    """Makes or fetches the model where it is not there yet. Raises typer.BadParameter."""
    if _is_file(name):
        return _gguf(Path(name))
    if name not in MODELS:
        raise typer.BadParameter(
            f"{name!r} is neither the path of a .gguf nor one of: {', '.join(MODELS)}"
        )
    return fetch_models.fetch(MODELS[name])


def _gguf(path: Path) -> Path:
    if not path.is_file():
        raise typer.BadParameter(f"{path}: there is no such file")
    return path.resolve()


def name_of(model: str) -> str:
    """How results and files call it: a GGUF by its file's name."""
    return Path(model).stem if _is_file(model) else model


def _is_file(model: str) -> bool:
    return model.endswith(".gguf")


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory on the disk of the models, not in memory, that is gone afterwards."""
    with TemporaryDirectory(prefix=".bench-", dir=fetch_models.MODELS) as name:
        yield Path(name)
