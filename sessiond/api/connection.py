"""Work that is worth doing only while its client is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive

CLIENT_CLOSED_REQUEST = 499
T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; what it asked for was cancelled."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns what `work` returns, or cancels it and raises ClientGone when the client goes first.

    `work` has ended when this returns or raises. The request's body must have been read.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def answered(receive: Receive, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer of `work`; where the client goes first, one that nobody reads."""
    try:
        return await while_connected(receive, work)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
