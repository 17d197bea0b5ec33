"""A failure in the shape of Anthropic's error object."""

from __future__ import annotations

import re

from sessiond.api.dialect import Json
from sessiond.api.failure import Failure
from sessiond.errors import InvalidRequest

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class ThreadUnsupported(InvalidRequest):
    """Anthropic's own libraries then send all messages, as they did before there were threads."""

    code = "thread_unsupported_request"


_PATHS = re.compile(r"(/s/[^/]*)?/v1/messages(/.*)?")


def is_anthropics(path: str) -> bool:
    """Whether `path` belongs to Anthropic's API."""
    return _PATHS.fullmatch(path) is not None


def anthropic_body(failure: Failure) -> Json:
    error: Json = {
        "type": _type(failure.status),
        "message": _message(failure),
        "code": failure.code,
    }
    if failure.code == ThreadUnsupported.code:
        error["details"] = {"error_code": failure.code}
    body: Json = {"type": "error", "error": {**error, "param": _param(failure), **failure.details}}
    return {**body, "request_id": failure.reference} if failure.reference else body


def _param(failure: Failure) -> str | None:
    """Under the name that this API has for the field."""
    if failure.param is None:
        return None
    param = failure.param.replace("response_format.json_schema.", "output_config.format.")
    return param.replace(".function.parameters", ".input_schema")


def _type(status: int) -> str:
    default = "api_error" if status >= 500 else "invalid_request_error"
    return _TYPES.get(status, default)


def _message(failure: Failure) -> str:
    """Claude Code compacts when it reads these very words, and no others."""
    tokens, limit = failure.details.get("n_prompt_tokens"), failure.details.get("n_ctx")
    if failure.code != "context_length_exceeded" or tokens is None:
        return failure.told
    return f"prompt is too long: {tokens} tokens > {limit} maximum"
