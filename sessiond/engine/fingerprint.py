"""What must be the same for a saved state to mean the same: model, library, settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sessiond.engine.context import ModelInfo
from sessiond.engine.settings import ContextSettings

_CHUNK = 1 << 20
_NEUTRAL_EXTRA = frozenset(
    {"main_gpu", "tensor_split", "split_mode", "n_threads", "n_threads_batch", "load_mode"}
)
"""`[model.extra]` keys that say where work is done, not what is computed."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """SHA-256 digests, hex. `value` covers all three.

    Not part of it: n_ctx, n_seq_max, n_batch, n_ubatch. State moves between those bit-identically.
    """

    model: str
    library: str
    settings: str

    @property
    def value(self) -> str:
        return digest_of(self.model, self.library, self.settings)


def fingerprint(
    settings: ContextSettings,
    info: ModelInfo,
    libraries: list[Path],
    digest: Callable[[Path], str],
) -> Fingerprint:
    """`digest` gives the SHA-256 of a file's content, cached or not."""
    names = [f"{path.name} {digest(path)}" for path in libraries]
    return Fingerprint(
        model=digest(settings.model),
        library=digest_of(*names),
        settings=digest_of(
            settings.type_k,
            settings.type_v,
            str(settings.flash_attn),
            "kv_unified swa_full=0 n_rs_seq=0",
            f"long_rope={_long_rope(settings, info)}",
            json.dumps(
                {k: v for k, v in settings.extra.items() if k not in _NEUTRAL_EXTRA},
                sort_keys=True,
                default=str,
            ),
        ),
    )


def digest_of(*fields: str) -> str:
    """SHA-256 over length-prefixed fields, hex."""
    state = hashlib.sha256(b"sessiond fingerprint")
    for field in fields:
        raw = field.encode()
        state.update(len(raw).to_bytes(8, "little") + raw)
    return state.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of the whole file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DigestCache:
    """File digests remembered in a JSON file by device, inode, size, mtime and ctime."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, path: Path) -> str:
        stat = path.stat()
        key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
        known = self._read()
        if key not in known:
            known[key] = file_digest(path)
            self._write(known)
        return known[key]

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: dict[str, str]) -> None:
        partial = self._path.with_suffix(".tmp")
        try:
            partial.write_text(json.dumps(dict(list(known.items())[-64:])))
            partial.replace(self._path)
        except OSError:
            partial.unlink(missing_ok=True)


def _long_rope(settings: ContextSettings, info: ModelInfo) -> bool:
    """Which side of a long-rope model is in use; its factors change beyond the original length."""
    original = info.n_ctx_orig
    return bool(original) and settings.n_ctx > original
