"""Where GGUFs lie: folders of our own, and those of other tools that download models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """`manifests`: the files have names only in Ollama's manifests. `deep`: folders in it count."""

    label: str
    directory: Path
    manifests: bool = False
    deep: bool = True


def places(model: str = "", environment: Mapping[str, str] | None = None) -> list[Place]:
    """Those that exist, each once. `model` is `model.path`, "" where none is set.

    KoboldCpp and llamafile have no folder of their own.
    """
    seen: set[Path] = set()
    found: list[Place] = []
    for place in _all(model, os.environ if environment is None else environment):
        resolved = place.directory.resolve()
        if resolved not in seen and place.directory.is_dir():
            seen.add(resolved)
            found.append(place)
    return found


def given(directories: Sequence[Path]) -> list[Place]:
    return [Place("", path.absolute(), _is_ollama(path)) for path in directories]


def _all(model: str, environment: Mapping[str, str]) -> Iterator[Place]:
    home = Path(environment.get("HOME") or Path.home())
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    for root in (Path().absolute(), Path(__file__).parents[2]):
        yield Place("sessiond", root / "models", deep=False)
    if model:
        yield Place("model.path", Path(model).expanduser().absolute().parent)
    if ours := environment.get("STATE_DIRECTORY"):
        yield Place("sessiond", Path(ours.split(":")[0]) / "models")
    for directory in (home / ".lmstudio/models", cache / "lm-studio/models"):
        yield Place("LM Studio", directory)
    yield Place("llama.cpp", Path(environment.get("LLAMA_CACHE") or cache / "llama.cpp"))
    yield Place("Hugging Face", _hugging_face(environment, cache))
    for directory in _ollama(environment, home):
        yield Place("Ollama", directory, manifests=True)
    for directory in (data / "nomic.ai/GPT4All", cache / "gpt4all"):
        yield Place("GPT4All", directory)
    for root in (data / "Jan/data", settings / "Jan/data", home / "jan"):
        yield Place("Jan", root / "llamacpp/models")
        yield Place("Jan", root / "models")


def _hugging_face(environment: Mapping[str, str], cache: Path) -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if directory := environment.get(variable):
            return Path(directory)
    home = environment.get("HF_HOME")
    return Path(home) / "hub" if home else cache / "huggingface/hub"


def _ollama(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    if directory := environment.get("OLLAMA_MODELS"):
        yield Path(directory)
    yield home / ".ollama/models"
    yield Path("/usr/share/ollama/.ollama/models")
    yield Path("/var/lib/ollama/models")


def _is_ollama(directory: Path) -> bool:
    return (directory / "manifests").is_dir() and (directory / "blobs").is_dir()
