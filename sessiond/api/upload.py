"""The one body that is not read before its route: a session's file may be larger than memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessiond.api.body import ClientLeft, linger
from sessiond.api.errors import UnsupportedMediaType
from sessiond.errors import QueueFull
from sessiond.sessions.transfer.manifest import MEDIA_TYPE

BYTES = "application/octet-stream"
MOST_AT_ONCE = 4
_PATH = re.compile(r"(/s/[^/]+)?/v1/sessions/import")
_EXPORT = re.compile(r"(/s/[^/]+)?/v1/sessions/[^/]+/export")


def is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and _PATH.fullmatch(scope["path"]) is not None


def is_download(scope: Scope) -> bool:
    return _EXPORT.fullmatch(scope["path"]) is not None


def announced(headers: Headers) -> int:
    """Bytes of the body; 0 where that is not said."""
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


class Uploads:
    """Files that are coming: one of each owner at a time, and `MOST_AT_ONCE` in all."""

    def __init__(self) -> None:
        self._of = Counter[str]()

    @contextmanager
    def one(self, owner: str) -> Iterator[None]:
        """Raises QueueFull."""
        if self._of[owner] or self._of.total() >= MOST_AT_ONCE:
            raise QueueFull("Another import is under way.", hint="Try again when it has ended.")
        self._of[owner] += 1
        try:
            yield
        finally:
            del self._of[owner]


def check_upload(headers: Headers) -> None:
    """Raises UnsupportedMediaType. Web pages cannot send these types without asking before."""
    given = headers.get("content-type")
    if given is None and headers.get("content-length", "0") == "0":
        return
    if (given or "").partition(";")[0].strip().lower() not in (BYTES, MEDIA_TYPE):
        raise UnsupportedMediaType(
            "The body is not declared as a file.", hint=f"Send Content-Type: {BYTES}."
        )


class Upload:
    """A body as it comes; `complete` once all of it has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Raises ClientLeft where the connection closes before the end."""
        while not self.complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            self.complete = not message.get("more_body", False)
            if chunk := message.get("body", b""):
                yield chunk


class Interrupting(Response):
    """Told while the client is still sending; then the connection is closed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await linger(self, receive, send)
