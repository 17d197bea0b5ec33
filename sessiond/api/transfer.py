"""Sessions as files: written while they are sent, and taken from what a client sends."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessiond.api.answers import documented
from sessiond.api.connection import ClientGone, while_connected
from sessiond.api.errors import failure, logged, refusal
from sessiond.api.identity import NAME_PATTERN, NAME_SENT, session_name
from sessiond.api.routing import SessionName, TheTurns, json_response
from sessiond.api.upload import BYTES, Interrupting, Upload, Uploads, announced
from sessiond.api.visitor import visitor_in
from sessiond.errors import SessiondError
from sessiond.sessions.transfer.manifest import MEDIA_TYPE
from sessiond.sessions.transfer.report import ImportReport
from sessiond.store.envelope import Buffer

router = APIRouter(prefix="/sessions")
_FILE = {"schema": {"type": "string", "format": "binary"}}
_EXPORTED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The session as one file", "content": {MEDIA_TYPE: _FILE}}
}
_SENT = {"requestBody": {"required": True, "content": {BYTES: _FILE}}}
WithState = Annotated[bool, Query(description="With the saved state, not only the turns.")]
NewName = Annotated[
    str | None,
    Query(max_length=NAME_SENT, json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1}),
]


class FileStream(Response):
    """Owns `parts`: they are closed when the file ends, fails, or the client goes."""

    def __init__(self, parts: AsyncGenerator[Buffer, None], file_name: str) -> None:
        told = f"attachment; filename=\"{file_name}\"; filename*=UTF-8''{quote(file_name)}"
        super().__init__(headers={"Content-Disposition": told}, media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            await while_connected(receive, self._send_all(send))
        except ClientGone:
            return
        except SessiondError as error:
            # Without an end of the body the client sees that the file was cut off.
            logged("export", error)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": bytes(part), "more_body": True})


@router.get("/{name}/export", response_class=Response, responses=_EXPORTED)
async def export_session(name: SessionName, turns: TheTurns, state: WithState = True) -> Response:
    exported = await turns.export(name, state=state)
    return FileStream(exported.parts, exported.file_name)


@router.post(
    "/import", status_code=201, responses=documented(ImportReport, 201), openapi_extra=_SENT
)
async def import_session(
    request: Request, turns: TheTurns, name: NewName = None, state: WithState = True
) -> Response:
    """Under `name`, or the one in the file. The answer says what was taken of it."""
    upload, size = Upload(request.receive), announced(request.headers)
    uploads: Uploads = request.app.state.uploads
    try:
        wanted = None if name is None else session_name(name, param="name")
        with uploads.one(visitor_in(request.scope).owner):
            async with aclosing(upload.chunks()) as chunks:
                report = await turns.import_session(
                    chunks, wanted, _in_file, state=state, size=size
                )
    except SessiondError as error:
        told = refusal(failure(error), request.url.path)
        if upload.complete:
            return told
        return Interrupting(told.body, told.status_code, dict(told.headers))
    return json_response(report, 201)


def _in_file(name: str) -> str:
    return session_name(name, param="name")
