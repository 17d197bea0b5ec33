"""State files below one cache directory: written once under a temporary name, then renamed.

Every file is reached component by component from the directory and never through a symbolic link.
Directories are 0700 and files 0600 whatever the umask. No fsync: a torn file is a checksum miss.
Any thread may call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from sessiond.errors import StateDamaged
from sessiond.store.buffers import Buffers
from sessiond.store.chain import Kind
from sessiond.store.envelope import HEADER_MAX, Buffer

BLOCKS, SNAPSHOTS, QUARANTINE, INCOMING = "blocks", "snapshots", "quarantine", "incoming"
SHELVES = (BLOCKS, SNAPSHOTS)

_IDLE = 64 << 20
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# Written by sessiond: state that can be computed again. Safe to delete; it costs time only.
"""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def shelf_of(kind: Kind) -> str:
    return BLOCKS if kind is Kind.BLOCK else SNAPSHOTS


class Files:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.buffers = Buffers(_IDLE)

    def prepare(self) -> None:
        """Makes the directory and what belongs in it."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        for name in (*SHELVES, QUARANTINE, INCOMING):
            with self.folder(name, create=True):
                pass
        with self.folder() as top, suppress(FileExistsError):
            tag = os.open("CACHEDIR.TAG", _CREATE, 0o600, dir_fd=top)
            _write_all(tag, [_TAG.encode()])

    def clear_incoming(self, writing: Collection[str] = ()) -> None:
        """Removes what killed writers left; all but the files of keys that are being written."""
        with self.folder(INCOMING, create=True) as incoming:
            with os.scandir(incoming) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                if name.partition(".")[0] not in writing:
                    os.unlink(name, dir_fd=incoming)

    def free(self) -> int:
        """Free bytes of the disk."""
        if not self.directory.is_dir():
            self.prepare()
        return shutil.disk_usage(self.directory).free

    def write(self, kind: Kind, key: str, parts: Sequence[Buffer]) -> None:
        """Raises OSError; nothing is left behind then."""
        temporary = f"{key}.{uuid4().hex}"
        with (
            self.folder(INCOMING, create=True) as incoming,
            self.folder(shelf_of(kind), key[:2], create=True) as shelf,
        ):
            try:
                _write_all(os.open(temporary, _CREATE, 0o600, dir_fd=incoming), parts)
                os.rename(temporary, key, src_dir_fd=incoming, dst_dir_fd=shelf)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=incoming)
                raise

    def read(self, kind: Kind, key: str, size: int) -> memoryview:
        """The whole file in a buffer of its own. Raises OSError; StateDamaged if not of `size`."""
        with self._opened(kind, key) as (file, found):
            if found != size:
                raise StateDamaged(f"{found} bytes, {size} were written.", key=key)
            return _read_all(file, self.buffers.take(size), key)

    def will_read(self, kind: Kind, key: str) -> None:
        """Let the system bring a file into its cache; does not wait. One may be gone."""
        with suppress(OSError, StateDamaged), self._opened(kind, key) as (file, size):
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, size, os.POSIX_FADV_WILLNEED)

    def head(self, kind: Kind, key: str) -> tuple[bytes, int]:
        """The first `HEADER_MAX` bytes at most, and the size of the file in bytes."""
        with self._opened(kind, key) as (file, size):
            return os.pread(file, HEADER_MAX, 0), size

    def exists(self, kind: Kind, key: str) -> bool:
        shelf = f"{self.directory}/{shelf_of(kind)}"
        folder = f"{shelf}/{key[:2]}"
        modes = [_mode(shelf), _mode(folder), _mode(f"{folder}/{key}")]
        return stat.S_ISDIR(modes[0]) and stat.S_ISDIR(modes[1]) and modes[2] != 0

    def remove(self, shelf: str, folder: str, name: str) -> None:
        """Nothing happens when it is gone already."""
        with suppress(FileNotFoundError), self.folder(shelf, folder) as at:
            os.unlink(name, dir_fd=at)

    def listed(self, *names: str) -> dict[str, os.stat_result]:
        """Everything but directories in a folder, by name; symbolic links as themselves."""
        try:
            with self.folder(*names) as folder, os.scandir(folder) as entries:
                found = {e.name: e.stat(follow_symlinks=False) for e in entries}
        except FileNotFoundError:
            return {}
        return {name: status for name, status in found.items() if not stat.S_ISDIR(status.st_mode)}

    def folders(self, shelf: str) -> set[str]:
        """Names of the folders of a shelf."""
        try:
            with self.folder(shelf) as folder, os.scandir(folder) as entries:
                return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        except FileNotFoundError:
            return set()

    def sync(self) -> None:
        """One `syncfs` of the disk the directory is on."""
        with self.folder() as top:
            syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
            if syncfs is None:
                os.sync()
            elif syncfs(top) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    @contextmanager
    def folder(self, *names: str, create: bool = False) -> Iterator[int]:
        """Descriptor of a folder below the directory.

        Raises FileNotFoundError when it is not there or no folder; with `create` it is made, and
        what stands in its place is removed."""
        if create and not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        at = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                inner = _made(at, name) if create else _entered(at, name)
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)

    @contextmanager
    def _opened(self, kind: Kind, key: str) -> Iterator[tuple[int, int]]:
        with self.folder(shelf_of(kind), key[:2]) as shelf:
            file = os.open(key, _READ, dir_fd=shelf)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise StateDamaged("not a regular file.", key=key)
            yield file, status.st_size
        finally:
            os.close(file)


def _mode(path: str) -> int:
    """Of the thing itself, not of what it links to; 0 when there is nothing."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _entered(at: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "not a folder", name) from error


def _made(at: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except NotADirectoryError:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=at)
    made = os.open(name, _FOLDER, dir_fd=at)
    os.fchmod(made, 0o700)
    return made


def _write_all(file: int, parts: Sequence[Buffer]) -> None:
    try:
        os.fchmod(file, 0o600)
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def _read_all(file: int, view: memoryview, key: str) -> memoryview:
    done = 0
    while done < len(view):
        count = os.readv(file, [view[done:]])
        if not count:
            raise StateDamaged(f"the file ends after {done} of {len(view)} bytes.", key=key)
        done += count
    return view
