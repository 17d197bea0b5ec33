"""What is turned away before a route sees it: foreign hosts and origins, too large, not JSON."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sessiond.api.body import ClientLeft, linger, read_body, replayed
from sessiond.api.errors import Forbidden, UnsupportedMediaType, failure, refusal
from sessiond.api.keys import InvalidKey, Keys, keys_in
from sessiond.api.page.routes import PATHS as PAGE_PATHS
from sessiond.api.patience import Patience
from sessiond.api.routing import ApiConfig
from sessiond.api.upload import check_upload, is_upload
from sessiond.api.visitor import enter, visitor_of
from sessiond.errors import BodyTooLarge
from sessiond.sessions.naming import HOUSE

_LOCAL_SUFFIXES = (".localhost", ".local", ".home.arpa")
_PUBLIC = frozenset({"/health", "/v1/health", *PAGE_PATHS})
_PROBE = ("HEAD", "/")
"""Anthropic's clients ask so whether anybody is there."""
_BEHIND_ADDRESS = re.compile(r"(:\d+)?")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def host_is_ours(host: str, allowed: Collection[str], own: str) -> bool:
    """`host` as in the Host header, `own` the machine's name. Others may be DNS rebinding."""
    name = _without_port(host.lower()).rstrip(".")
    if not name:
        return False
    if name == "localhost" or name.endswith(_LOCAL_SUFFIXES) or _is_address(name):
        return True
    if name in (own.lower(), own.lower().partition(".")[0]):
        return True
    return any(_matches(name, pattern.lower()) for pattern in allowed)


def origin_is_ours(origin: str | None, host: str) -> bool:
    """Whether a page that this daemon served made the request, or no page at all."""
    return origin is None or origin.lower().partition("://")[2] == host.lower()


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return name == pattern.rstrip(".")


def _without_port(host: str) -> str:
    if host.startswith("["):
        address, closed, port = host[1:].partition("]")
        return address if closed and _BEHIND_ADDRESS.fullmatch(port) else ""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _config(scope: Scope) -> ApiConfig:
    config: ApiConfig = scope["app"].state.config
    return config


def _is_over_unix_socket(scope: Scope) -> bool:
    return scope["server"] is None or scope["server"][1] is None


def _peer(scope: Scope) -> str:
    return scope["client"][0] if scope["client"] else ""


class Guard:
    """The outermost layer. Reads the body, so that a route starts only when all of it is there.

    Nothing that fails inside escapes: unexpected errors become an error object here.
    """

    def __init__(
        self, app: ASGIApp, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """`pause` waits so many seconds."""
        self._app = app
        self._own = socket.gethostname()
        self._patience = Patience()
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._guarded(scope, receive, watched)
        except ClientLeft:
            return
        except BodyTooLarge as error:
            await linger(refusal(failure(error), scope["path"]), receive, send)
        except Exception as error:
            response = refusal(failure(error), scope["path"])
            # Without an end of the body the connection is closed: the client sees it was cut.
            if not started:
                await response(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, config = Headers(scope=scope), _config(scope)
        owner = await self._owner(scope, headers, config.keys)
        trusted = _is_over_unix_socket(scope) or (owner is not None and bool(config.keys))
        self._check(headers, config.allowed_hosts, trusted=trusted)
        enter(scope, visitor_of(owner, headers))
        if is_upload(scope):
            check_upload(headers)
            await self._app(scope, receive, send)
            return
        body = await read_body(headers, receive, config.max_body)
        if body is not None:
            self._check_type(scope, headers, body)
            receive = replayed(body, receive)
        await self._app(scope, receive, send)

    async def _owner(self, scope: Scope, headers: Headers, keys: Keys) -> str | None:
        """Of the request's key: the house's over the unix socket, and where none are needed. None
        without one, where a path needs none. Raises InvalidKey, after a wrong one later and later.
        """
        if not keys or _is_over_unix_socket(scope):
            return HOUSE
        owner = keys.owner_of(headers)
        public = scope["path"] in _PUBLIC or (scope["method"], scope["path"]) == _PROBE
        if owner is not None or public:
            return owner
        if keys_in(headers) and (wait := self._patience.failed(_peer(scope))):
            await self._pause(wait)
        raise InvalidKey("This daemon needs an API key.", hint="Send Authorization: Bearer KEY.")

    def _check(self, headers: Headers, allowed: Collection[str], *, trusted: bool) -> None:
        """Who is `trusted` may come under any host name. Raises Forbidden."""
        host = headers.get("host", "")
        if not trusted and not host_is_ours(host, allowed, self._own):
            raise Forbidden(
                "This host name is not one that sessiond answers to.",
                hint="Add it to [server] allowed_hosts, or use the IP address.",
            )
        if not origin_is_ours(headers.get("origin"), host):
            raise Forbidden("Web pages of other sites may not call sessiond.")

    def _check_type(self, scope: Scope, headers: Headers, body: bytes) -> None:
        given = headers.get("content-type")
        if scope["method"] in _SAFE_METHODS or (given is None and not body):
            return
        media = (given or "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise UnsupportedMediaType(
                "The body is not declared as JSON.", hint="Send Content-Type: application/json."
            )
