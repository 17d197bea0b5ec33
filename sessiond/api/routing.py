"""What the routes share: parsing, and what they are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Any, NoReturn

import orjson
from fastapi import Depends, HTTPException, Path
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from sessiond.api.identity import NAME_PATTERN, NAME_SENT, session_name
from sessiond.api.keys import Keys
from sessiond.api.own_turns import OwnTurns
from sessiond.api.presets import Presets
from sessiond.api.visitor import visitor_in
from sessiond.sessions.transcript import clean
from sessiond.sessions.turn import Turns


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """`max_body` in bytes. `keepalive` is the longest silence of a stream in seconds.

    `allowed_hosts` come on top of loopback, IP addresses, the own hostname, *.local, *.home.arpa;
    `*.example.com` stands for all hosts below it. `strict_name`: model names other than the model's
    and those of `presets` are refused.
    With `keys`, everything but /health and the page at / needs one, except over the unix socket.
    """

    allowed_hosts: tuple[str, ...] = ()
    max_body: int = 32 * 1024 * 1024
    strict_name: bool = False
    keepalive: float = 15.0
    keys: Keys = Keys()
    presets: Presets = field(default_factory=dict)


DEPTH = 64
"""Levels of nesting of a body. Much more than any schema has, and few enough for every parser."""


class JsonRequest(Request):
    async def json(self) -> Any:
        """Raises json.JSONDecodeError, HTTPException for one that is nested too deeply."""
        if not hasattr(self, "_json"):
            body = parsed(await self.body())
            if _is_deeper(body, DEPTH):
                raise HTTPException(400, f"The body is nested more than {DEPTH} levels deep.")
            self._json = body
        return self._json


class JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle


def parsed(body: bytes) -> Any:
    """Raises json.JSONDecodeError. Half surrogate pairs, as JavaScript cuts them, become U+FFFD.

    Integers of more than 64 bits become floats, and numbers that no float can hold are refused:
    what is read here can be written again.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            return _cleaned(
                json.loads(
                    body, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_finite
                )
            )
        except (ValueError, RecursionError):
            raise error from None


def _is_deeper(value: Any, limit: int) -> bool:
    """Without recursion, which is what too much depth would break."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _integer(digits: str) -> int | float:
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else _finite(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(digits)
    return number


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    return value


# Coroutines, since a plain dependency is sent to a worker thread, for every request.
async def _turns(request: Request) -> Turns:
    """As the one who asks sees the daemon."""
    return OwnTurns(request.app.state.turns, visitor_in(request.scope))


async def _config(request: Request) -> ApiConfig:
    config: ApiConfig = request.app.state.config
    return config


NamePath = Annotated[
    str, Path(max_length=NAME_SENT, json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1})
]


async def _named(name: NamePath) -> str:
    return session_name(name, param="name")


TheTurns = Annotated[Turns, Depends(_turns)]
Config = Annotated[ApiConfig, Depends(_config)]
SessionName = Annotated[str, Depends(_named)]


def json_response(
    content: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """`content` may hold dataclasses."""
    return Response(orjson.dumps(content), status, headers, media_type="application/json")
