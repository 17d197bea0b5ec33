"""What an index leaves beside its file when it is closed: that it was sound, and what it had.

Looking through a large index takes seconds. One that nobody has touched since is believed, and one
that failed while it was used is not.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from sessiond.store.found import Totals


def leave(path: Path, totals: Totals) -> None:
    """For the index file `path`, closed. Where it cannot be written there is none."""
    with suppress(OSError):
        if not Path(f"{path}-wal").exists():
            receipt = _place(path)
            receipt.write_text(json.dumps({"file": _mark(path), "totals": asdict(totals)}))
            receipt.chmod(0o600)


def take(path: Path) -> Totals | None:
    """Once: after a crash there is none. None also where the file is another by now."""
    try:
        found = json.loads(_place(path).read_text())
        _place(path).unlink()
        return Totals(**found["totals"]) if found["file"] == _mark(path) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def doubt(path: Path) -> None:
    """The index has failed: the next start reads it through."""
    with suppress(OSError):
        _doubtful(path).touch(0o600)


def take_doubt(path: Path) -> bool:
    """Whether the index has failed since it was last read through."""
    with suppress(OSError):
        _doubtful(path).unlink()
        return True
    return False


def _doubtful(path: Path) -> Path:
    return Path(f"{path}.doubtful")


def _place(path: Path) -> Path:
    return Path(f"{path}.closed")


def _mark(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]
