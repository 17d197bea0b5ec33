"""Reading a request's body up to a limit, and refusing more so that the client hears it."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from sessiond.errors import BodyTooLarge

LINGER_SECONDS = 2.0


class ClientLeft(Exception):
    """The connection closed before the body was complete."""


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge once more than `limit` bytes are announced or came."""
    announced = headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body at once, and after that what the connection gives."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


async def linger(response: Response, receive: Receive, send: Send) -> None:
    """Answer while the client is still sending, then close.

    Closing with unread data resets the connection, and the client would lose the answer; so what
    still comes is dropped for a moment first.
    """
    headers = [*response.raw_headers, (b"connection", b"close")]
    status = response.status_code
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while _more(await receive()):
                pass
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _more(message: Message) -> bool:
    return message["type"] == "http.request" and bool(message.get("more_body", False))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request is larger than {limit} bytes.", hint="Raise [server] max_body, or send less."
    )
