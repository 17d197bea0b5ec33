"""The file with the API keys, as it is changed on the command line: whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sessiond.api.keys import Key, read_lines
from sessiond.errors import ConfigError

PREFIX = "sk-sessiond-"
_RANDOM_BYTES = 32
_PRIVATE = 0o600
_KEPT = 0o640
"""What stays of the mode of a file that is there: the daemon's group may read it."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Methods raise ConfigError; the file is then as it was."""

    path: Path

    def keys(self) -> list[Key]:
        """None where there is no file."""
        with self._named_errors("read"):
            return [key for key in read_lines(self._content(), self.path) if key]

    def add(self, owner: str) -> tuple[str, Key]:
        """A new key, which only the caller knows now, and what the file has of it."""
        secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        key = Key.of(owner, secret.encode())
        with self._named_errors("written"), self._locked():
            content = self._content()
            read_lines(content, self.path)
            end = b"\n" if content and not content.endswith(b"\n") else b""
            self._replace(content + end + f"{key.line}\n".encode())
        return secret, key

    def remove(self, which: str) -> list[Key]:
        """The keys of an owner, else those whose digest begins with `which`; all else stays."""
        with self._named_errors("written"), self._locked():
            content = self._content()
            found = read_lines(content, self.path)
            gone = {key for key in found if key and which and key.owner == which}
            gone = gone or {key for key in found if key and _begins(key, which)}
            lines = content.splitlines(keepends=True)
            if gone:
                left = [line for line, key in zip(lines, found, strict=True) if key not in gone]
                self._replace(b"".join(left))
        return [key for key in found if key in gone]

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two commands at once change it one after the other."""
        directory = self.path.parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
            os.fsync(handle)
        finally:
            os.close(handle)

    def _replace(self, content: bytes) -> None:
        target = self.path.resolve()
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                self._take_over(file.fileno(), target)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise

    def _take_over(self, handle: int, target: Path) -> None:
        """Owner and group of the file that is replaced, so that the daemon can still read it."""
        mode = _PRIVATE
        with suppress(FileNotFoundError):
            was = target.stat()
            made = os.fstat(handle)
            if (was.st_uid, was.st_gid) != (made.st_uid, made.st_gid):
                os.fchown(handle, was.st_uid, was.st_gid)
            mode |= stat.S_IMODE(was.st_mode) & _KEPT
        os.fchmod(handle, mode)

    @contextmanager
    def _named_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"The keys file {self.path} cannot be {done}: {error.strerror}.",
                hint="Use an account that may, such as root's with sudo, or give another --file.",
                param="auth.keys_file",
            ) from error


def _begins(key: Key, which: str) -> bool:
    return len(which) >= 8 and key.digest.hex().startswith(which.lower())
