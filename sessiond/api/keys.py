"""API keys: who may call the daemon from where others can reach it, and for whom."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import Headers

from sessiond.errors import ConfigError, SessiondError
from sessiond.sessions.naming import HOUSE

logger = logging.getLogger("sessiond")
OWNER_PATTERN = r"[A-Za-z0-9._-]{1,64}"
SHORTEST = 16
"""Characters of a key that is not warned of: it may be an owner whose key was forgotten."""
SHORT_DIGEST = 12
"""Characters of a key's digest by which people tell keys apart."""
_OWNER = re.compile(OWNER_PATTERN)
_HASHED = re.compile(r"(?i:sha256):([0-9a-fA-F]{64})")
_COMMENT = re.compile(r"(^|\s)#.*")


class InvalidKey(SessiondError):
    code, status = "invalid_api_key", 401


@dataclass(frozen=True, slots=True)
class Key:
    """`digest` is the SHA-256 of the key, which itself is kept nowhere. `owner` "": the house's."""

    owner: str
    digest: bytes

    @classmethod
    def of(cls, owner: str, key: bytes) -> Key:
        return cls(owner, sha256(key).digest())

    @property
    def short(self) -> str:
        return self.digest.hex()[:SHORT_DIGEST]

    @property
    def line(self) -> str:
        """As it stands in a keys file."""
        return f"{self.owner} sha256:{self.digest.hex()}".strip()


@dataclass(frozen=True, slots=True)
class Keys:
    """Without any, nobody needs one."""

    known: tuple[Key, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Keys:
        """One key a line: `KEY`, `OWNER KEY` or `OWNER sha256:HEX`; `#` begins a comment.

        Raises ConfigError that names file and line, and never a key.
        """
        try:
            return cls(tuple(key for key in read_lines(path.read_bytes(), path) if key))
        except OSError as error:
            raise ConfigError(
                f"The keys file {path} cannot be read: {error.strerror}.", param="auth.keys_file"
            ) from error

    def __bool__(self) -> bool:
        return bool(self.known)

    def owner_of(self, headers: Headers) -> str | None:
        """Whose key it is in `Authorization: Bearer KEY` or `X-Api-Key: KEY`; None for no right
        one. Takes as long whichever of the keys is given.
        """
        found: str | None = None
        for given in keys_in(headers):
            digest = sha256(given).digest()
            for key in self.known:
                if hmac.compare_digest(digest, key.digest) and found is None:
                    found = key.owner
        return found


def keys_in(headers: Headers) -> list[bytes]:
    """What a request gives as its key, right or wrong: the bearer's comes first."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = (token if scheme.lower() == "bearer" else "", headers.get("x-api-key", ""))
    # Headers are decoded as latin-1: this gives back the bytes that came in.
    raw = (value.encode("latin-1", "replace").strip() for value in given)
    return [value for value in raw if value]


def is_owner(name: str) -> bool:
    return _OWNER.fullmatch(name) is not None


def read_lines(content: bytes, path: Path) -> list[Key | None]:
    """The key of each line of a keys file, None where there is none. Raises ConfigError."""
    lines = [_key(line, path, number) for number, line in enumerate(content.splitlines(), 1)]
    _refuse_doubles(lines, path)
    return lines


def _key(line: bytes, path: Path, number: int) -> Key | None:
    text = _text(line)
    if text is None:
        raise _bad(path, number, "is not UTF-8 text")
    words = _COMMENT.sub("", text).split()
    if not words:
        return None
    if len(words) > 2:
        raise _bad(path, number, "has more than two words")
    owner, key = (HOUSE, *words)[-2:]
    if owner and not is_owner(owner):
        raise _bad(path, number, "has an owner that is not 1 to 64 of A-Z a-z 0-9 . _ -")
    if hashed := _HASHED.fullmatch(key):
        return Key(owner, bytes.fromhex(hashed[1]))
    if key.lower().startswith("sha256:"):
        raise _bad(path, number, "has a SHA-256 that is not 64 hexadecimal digits")
    if not key.isprintable():
        raise _bad(path, number, "has characters that cannot be seen")
    if len(key) < SHORTEST:
        logger.warning(
            "The keys file %s, line %d, has a key of less than %d characters: is it an owner?",
            path,
            number,
            SHORTEST,
        )
    return Key.of(owner, key.encode())


def _text(line: bytes) -> str | None:
    """Apart from what is raised of it: the error that says why quotes the line."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _refuse_doubles(lines: Iterable[Key | None], path: Path) -> None:
    """Of two lines with one key it would depend on their order whose it is."""
    first: dict[bytes, int] = {}
    for number, key in enumerate(lines, 1):
        if key is not None and first.setdefault(key.digest, number) != number:
            raise _bad(path, number, f"has the same key as line {first[key.digest]}")


def _bad(path: Path, number: int, problem: str) -> ConfigError:
    return ConfigError(
        f"The keys file {path}, line {number}, {problem}.",
        hint="Write OWNER KEY or OWNER sha256:HEX; `sessiond key new OWNER` makes such a line.",
        param="auth.keys_file",
    )
