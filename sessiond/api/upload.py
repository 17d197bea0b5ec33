"""The one body that is not read before its route: a session's file may be larger than memory."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessiond.api.body import ClientLeft, linger
from sessiond.api.errors import UnsupportedMediaType
from sessiond.sessions.transfer.manifest import MEDIA_TYPE

BYTES = "application/octet-stream"
_PATH = re.compile(r"(/s/[^/]+)?/v1/sessions/import")


def is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and _PATH.fullmatch(scope["path"]) is not None


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
