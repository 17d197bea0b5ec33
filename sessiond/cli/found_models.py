"""The GGUFs of a few folders, each model once: split files together, links and loops seen through.

Files come from anywhere, so nothing in them is believed: what is broken is said and passed over.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sessiond.cli.model_places import Place
from sessiond.engine.gguf import BrokenGguf, open_regular, read_header
from sessiond.engine.gguf_model import GgufModel, model_of

DEEPEST = 12
MOST_ENTRIES = 200_000
"""Files and folders that are looked at in one place."""
_SPLIT = re.compile(r"(?P<name>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LONGEST_MANIFEST = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundModel:
    """`path` is what `model.path` takes: of a split model its first file."""

    name: str
    path: Path
    place: str
    model: GgufModel


@dataclass(frozen=True, slots=True)
class PassedOver:
    path: Path
    why: str


Found = FoundModel | PassedOver


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: Path


def find_models(places: Iterable[Place]) -> Iterator[Found]:
    """In the order of the places, then by name."""
    seen: set[tuple[int, int]] = set()
    for place in places:
        for file in sorted(_files(place), key=lambda file: (file.name.lower(), str(file.path))):
            identity = _identity(file.path)
            if identity is None or identity in seen:
                continue
            seen.add(identity)
            yield _found(file, place.label)


def read_model(path: Path) -> GgufModel:
    """With the other files of a split model. Raises BrokenGguf, OSError."""
    return model_of([read_header(part) for part in _parts(path)])


def _found(file: _File, place: str) -> Found:
    try:
        return FoundModel(file.name, file.path, place, read_model(file.path))
    except BrokenGguf as error:
        return PassedOver(file.path, error.message)
    except OSError as error:
        return PassedOver(file.path, error.strerror or str(error))


def _parts(path: Path) -> list[Path]:
    split = _SPLIT.fullmatch(path.name)
    if split is None:
        return [path]
    count = int(split["parts"])
    if not 1 <= count <= 1024:
        raise BrokenGguf(f"it says it is one of {count} files")
    names = [f"{split['name']}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise BrokenGguf(f"{len(missing)} of its {count} files are missing: {missing[0]}")
    return [path.with_name(name) for name in names]


def _files(place: Place) -> Iterator[_File]:
    if place.manifests:
        yield from _of_ollama(place.directory)
        return
    for path in _walk(place.directory, DEEPEST if place.deep else 0):
        split = _SPLIT.fullmatch(path.name)
        if split is None and path.suffix.lower() == ".gguf":
            yield _File(path.stem, path)
        elif split is not None and int(split["part"]) == 1:
            yield _File(split["name"], path)


def _walk(root: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Files below `root`, links followed, no folder twice."""
    seen: set[tuple[int, int]] = set()
    waiting, entries = [(root, 0)], 0
    while waiting:
        directory, depth = waiting.pop()
        identity = _identity(directory)
        if identity is None or identity in seen or depth > deepest:
            continue
        seen.add(identity)
        for entry in _entries(directory):
            entries += 1
            if entries > MOST_ENTRIES:
                return
            if _is_directory(entry):
                waiting.append((Path(entry.path), depth + 1))
            else:
                yield Path(entry.path)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _of_ollama(root: Path) -> Iterator[_File]:
    """`manifests/REGISTRY/NAMESPACE/MODEL/TAG` names the blob of the weights."""
    for manifest in _walk(root / "manifests"):
        digest = _weights(manifest)
        if digest is not None:
            parts = manifest.relative_to(root / "manifests").parts
            shown = [part for part in parts[1:-1] if part != "library"]
            yield _File(f"{'/'.join(shown)}:{parts[-1]}", root / "blobs" / f"sha256-{digest}")


def _weights(manifest: Path) -> str | None:
    try:
        with open_regular(manifest) as file:
            content = file.read(_LONGEST_MANIFEST + 1)
        if len(content) > _LONGEST_MANIFEST:
            return None
        told = json.loads(content)
        layers = [layer for layer in told["layers"] if layer["mediaType"] == _LAYER]
        digest = _DIGEST.fullmatch(layers[0]["digest"]) if layers else None
    except (BrokenGguf, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return digest[1] if digest else None


def _identity(path: Path) -> tuple[int, int] | None:
    """Of what a link points to. None where there is nothing, or nothing that can be seen."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
