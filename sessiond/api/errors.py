"""Every failure as an error object; a 5xx is logged once, with an id, nothing private."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from urllib.parse import quote

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sessiond.api.failure import Failure
from sessiond.api.messages.errors import anthropic_body, is_anthropics
from sessiond.api.responses.errors import is_responses, named
from sessiond.errors import ContextLengthExceeded, SessiondError
from sessiond.sessions.explanation import ContextEditRejected

log = logging.getLogger(__name__)

_OUR_FAULT = "Something failed inside sessiond. The log says where, under this id."


class Forbidden(SessiondError):
    """The Host or Origin of the request is not one of ours."""

    code, status = "forbidden", 403


class UnsupportedMediaType(SessiondError):
    code, status = "unsupported_media_type", 415


def failure(error: Exception) -> Failure:
    """Turns any exception into what the client is told; logs it if the fault is ours."""
    if isinstance(error, SessiondError):
        return _known(error)
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return _routing(error)
    return Failure(500, _OUR_FAULT, "internal_error", reference=logged("request", error))


def install(app: FastAPI) -> None:
    for kind in (SessiondError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    return refusal(failure(error), request.url.path)


def refusal(told: Failure, path: str) -> Response:
    """In the shape of the API that `path` belongs to."""
    told = named(told) if is_responses(path) else told
    body = anthropic_body(told) if is_anthropics(path) else told.body()
    return Response(orjson.dumps(body), told.status, dict(told.headers), "application/json")


def _known(error: SessiondError) -> Failure:
    if isinstance(error, ContextEditRejected):
        return _refusal(error)
    retry = error.retry_after
    headers = {} if retry is None else {"Retry-After": str(retry)}
    reference = "" if error.status < 500 else logged("request", error, expected=retry is not None)
    details = _room(error) if isinstance(error, ContextLengthExceeded) else {}
    return Failure(error.status, str(error), error.code, error.param, reference, headers, details)


def _room(error: ContextLengthExceeded) -> dict[str, int]:
    """Under llama-server's names."""
    return {"n_prompt_tokens": error.tokens, "n_ctx": error.limit}


def _refusal(error: ContextEditRejected) -> Failure:
    """Agents repeat a 409 for minutes, and some a 400 unless they are told not to."""
    told = error.explanation
    details = {
        "cause": told.cause,
        "session": error.session,
        "explain_url": f"/v1/sessions/{quote(error.session, safe='')}/explain",
        "first_diff": asdict(told.first_diff),
        "reusable_tokens": told.reusable_tokens,
        "discarded_tokens": told.discarded_tokens,
        "estimated_prefill_ms": round(told.estimated_prefill_ms),
    }
    headers = {"x-should-retry": "false"}
    return Failure(error.status, str(error), error.code, error.param, "", headers, details)


def logged(what: str, error: Exception, *, expected: bool = False) -> str:
    """Logs what kind of error happened where, and returns the id it is found under. `expected`: it
    is the daemon's answer to too much, or to its own end.

    Messages may quote prompts or names, so they stay out.
    """
    reference = secrets.token_hex(4)
    cause = error.__cause__ or error.__context__
    kinds = " from ".join(type(each).__name__ for each in (error, cause) if each)
    if expected:
        log.info("%s was turned away, id %s: %s", what, reference, kinds)
        return reference
    frames = traceback.extract_tb(error.__traceback__)
    trail = " > ".join(f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in frames[-8:])
    log.error("%s failed, id %s: %s at %s", what, reference, kinds, trail)
    return reference


def _routing(error: HTTPException) -> Failure:
    status = HTTPStatus(error.status_code)
    messages = {
        404: "There is nothing at this path. A session name in it has no slash.",
        405: "This path does not take this method.",
    }
    message = messages.get(error.status_code, str(error.detail))
    code = status.phrase.lower().replace(" ", "_")
    return Failure(error.status_code, message, code, headers=error.headers or {})


def _invalid(error: RequestValidationError) -> Failure:
    problems = error.errors()
    if problems[0]["type"] == "json_invalid":
        return Failure(400, "The body is not valid JSON.", "invalid_json")
    first = problems[0]["loc"][:2]
    found = [
        (_path(problem["loc"], problem["type"], error.body), problem["msg"])
        for problem in problems
        if problem["loc"][:2] == first
    ]
    path = max((path for path, _ in found), key=len)
    if not path:
        return Failure(400, "The body is not a JSON object.", "invalid_request")
    param = _dotted(path)
    text = ", or: ".join(dict.fromkeys(text for other, text in found if other == path))
    return Failure(400, f"{param}: {text}.", "invalid_request", param)


def _path(loc: Sequence[str | int], kind: str, body: object) -> list[str | int]:
    """The part of pydantic's location that exists in the body; the rest names alternatives."""
    if loc[0] != "body":
        return list(loc[1:])
    path: list[str | int] = []
    for step in loc[1:]:
        if isinstance(body, dict) and step in body:
            body = body[step]
        elif isinstance(body, list) and isinstance(step, int) and step < len(body):
            body = body[step]
        elif not (kind == "missing" and step == loc[-1]):
            continue
        path.append(step)
    return path


def _dotted(path: Sequence[str | int]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
