"""Where refused files go: a few, for a look at what happened, the first to go for want of room."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from contextlib import suppress

from sessiond.metrics import STORE_QUARANTINED
from sessiond.store.chain import Kind
from sessiond.store.files import QUARANTINE, Files, shelf_of

KEEP = 16


class Quarantine:
    """Not thread-safe: the store's lock is held by every caller."""

    def __init__(self, files: Files) -> None:
        self._files = files
        listed = sorted(files.listed(QUARANTINE).items(), key=lambda item: item[1].st_mtime_ns)
        self._sizes = OrderedDict((name, status.st_size) for name, status in listed)
        self._trim()

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    def take(self, kind: Kind, key: str, reason: str) -> None:
        """Moves a refused file out of the way. One already gone does not count; a link goes."""
        shelf = shelf_of(kind)
        name = f"{key}.{reason}"
        with (
            suppress(FileNotFoundError),
            self._files.folder(shelf, key[:2]) as source,
            self._files.folder(QUARANTINE, create=True) as target,
        ):
            status = os.stat(key, dir_fd=source, follow_symlinks=False)
            STORE_QUARANTINED.labels(reason).inc()
            if not stat.S_ISREG(status.st_mode):
                os.unlink(key, dir_fd=source)
                return
            os.rename(key, name, src_dir_fd=source, dst_dir_fd=target)
            self._sizes[name] = status.st_size
            self._sizes.move_to_end(name)
        self._trim()

    def make_room(self, need: int) -> int:
        """Removes the oldest until `need` bytes are freed or none is left; how many were freed."""
        freed = 0
        while self._sizes and freed < need:
            freed += self._remove_oldest()
        return freed

    def _trim(self) -> None:
        while len(self._sizes) > KEEP:
            self._remove_oldest()

    def _remove_oldest(self) -> int:
        name, size = self._sizes.popitem(last=False)
        with suppress(FileNotFoundError), self._files.folder(QUARANTINE) as folder:
            os.unlink(name, dir_fd=folder)
        return size
