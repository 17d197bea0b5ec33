"""A file that is being sent to the daemon, kept on disk until it is looked at. It has no name where
the system allows that, and in any case none that outlives the daemon.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from sessiond.errors import BodyTooLarge
from sessiond.sessions.transfer.manifest import PART

_PREFIX, _SUFFIX = "import-", ".part"


class Incoming:
    """Files in `directory`, for this user only. `keep_free` bytes of its disk stay free."""

    def __init__(self, directory: Path, keep_free: int) -> None:
        self._directory = directory
        self._keep_free = keep_free

    def clear(self) -> None:
        """Removes what a killed daemon left. Raises OSError."""
        for left in self._directory.glob(f"{_PREFIX}*{_SUFFIX}"):
            left.unlink(missing_ok=True)

    def check_room(self, size: int) -> None:
        """Raises BodyTooLarge where the disk has no room for so many bytes now."""
        if size:
            try:
                disk = os.statvfs(self._directory)
            except OSError as error:
                raise _no_room() from error
            self._check(disk, size)

    @asynccontextmanager
    async def received(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[BinaryIO, None]:
        """All of `chunks` as a file that is gone afterwards. Raises BodyTooLarge where the disk has
        no room for them, OSError.
        """
        with TemporaryFile(dir=self._directory, prefix=_PREFIX, suffix=_SUFFIX) as made:
            file, waiting = cast(BinaryIO, made), bytearray()
            async for chunk in chunks:
                waiting += chunk
                if len(waiting) >= PART:
                    await asyncio.to_thread(self._write, file, waiting)
                    waiting = bytearray()
            await asyncio.to_thread(self._write, file, waiting)
            yield file

    def _write(self, file: BinaryIO, data: bytearray) -> None:
        try:
            self._check(os.fstatvfs(file.fileno()), len(data))
            file.write(data)
            file.flush()
        except OSError as error:
            raise _no_room() from error

    def _check(self, disk: os.statvfs_result, size: int) -> None:
        if disk.f_bavail * disk.f_frsize - self._keep_free < size:
            raise _no_room()


def _no_room() -> BodyTooLarge:
    return BodyTooLarge(
        "The disk has no room for this file.",
        hint="Free some of it, lower [store] keep_free, or export without state.",
    )
