"""API keys: who may call the daemon from where others can reach it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers

from sessiond.errors import ConfigError, SessiondError


class InvalidKey(SessiondError):
    code, status = "invalid_api_key", 401


@dataclass(frozen=True, slots=True)
class Keys:
    """Without any, nobody needs one."""

    values: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Keys:
        """One key a line, a label may stand before it; `#` begins a comment. Raises ConfigError."""
        try:
            lines = path.read_text().splitlines()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"The keys file {path} cannot be read: {error}.", param="auth.keys_file"
            ) from error
        words = [line.partition("#")[0].split() for line in lines]
        return cls(tuple(line[-1].encode() for line in words if line))

    def __bool__(self) -> bool:
        return bool(self.values)

    def accepts(self, headers: Headers) -> bool:
        """Whether `Authorization: Bearer KEY` or `X-Api-Key: KEY` has one of them."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Headers are decoded as latin-1: this gives back the bytes that came in.
        raw = given.encode("latin-1", "replace")
        matches = [hmac.compare_digest(raw, key) for key in self.values]
        return any(matches)
