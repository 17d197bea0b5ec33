"""The status page: three files that hold no data, so that nobody needs a key for them."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from sessiond.api.answers import Documented

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
PATHS = frozenset({"/", "/page.css", "/page.js"})
router = APIRouter()


def _told(media_type: str) -> Documented:
    content = {media_type: {"schema": {"type": "string"}}}
    return {200: {"description": "A file of the status page", "content": content}}


def _file(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


def _answer(name: str, media_type: str) -> Response:
    return Response(_file(name), headers=HEADERS, media_type=media_type)


@router.get("/", response_class=Response, responses=_told("text/html"))
async def page() -> Response:
    """The status page, for people."""
    return _answer("index.html", "text/html")


@router.get("/page.css", response_class=Response, responses=_told("text/css"))
async def style() -> Response:
    return _answer("page.css", "text/css")


@router.get("/page.js", response_class=Response, responses=_told("text/javascript"))
async def script() -> Response:
    return _answer("page.js", "text/javascript")
