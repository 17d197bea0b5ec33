"""What a request asks of the chat template: thinking, effort, and options by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from sessiond.errors import InvalidRequest

OPTIONS = 64
OPTIONS_BYTES = 16 * 1024
"""Of all names and values as JSON."""
RESERVED = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "strftime_now",
        "raise_exception",
    }
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_EFFORT = re.compile(r"[A-Za-z0-9_-]{1,32}")
_NO_EFFORT = "none"
_THINKING = {"enabled": True, "disabled": False}


def template_options(
    body: Mapping[str, Any], preset: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The template's options, by name, from a request in any API's shape.

    `chat_template_kwargs` win over the fields beside them, and what the request says over its
    preset. Raises InvalidRequest naming the field.
    """
    return {**_options(preset or {}), **_options(body)}


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    return {**_thinking(body), **_effort(body), **_enabled(body), **_kwargs(body)}


def _kwargs(body: Mapping[str, Any]) -> dict[str, Any]:
    param = "chat_template_kwargs"
    given = _object(body, param)
    if len(given) > OPTIONS:
        raise InvalidRequest(
            f"{param} has {len(given)} options.", hint=f"At most {OPTIONS}.", param=param
        )
    for name in given:
        _check_name(name, f"{param}.{name}")
    try:
        size = len(orjson.dumps(given))
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not JSON.", param=param) from error
    if size > OPTIONS_BYTES:
        raise InvalidRequest(
            f"{param} is too large.", hint=f"At most {OPTIONS_BYTES} bytes.", param=param
        )
    return given


def _check_name(name: str, param: str) -> None:
    if name in RESERVED:
        raise InvalidRequest(
            f"{param} is not an option: sessiond sets it.", hint="Leave it out.", param=param
        )
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "An option in chat_template_kwargs has a name that templates cannot use.",
            hint="Use letters, digits and underscores, at most 64.",
            param="chat_template_kwargs",
        )


def _enabled(body: Mapping[str, Any]) -> dict[str, Any]:
    given = body.get("enable_thinking")
    if given is None:
        return {}
    if not isinstance(given, bool):
        raise InvalidRequest("enable_thinking is not true or false.", param="enable_thinking")
    return {"enable_thinking": given}


def _effort(body: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's field, or OpenRouter's and the Responses API's object."""
    reasoning = _object(body, "reasoning")
    given, param = reasoning.get("effort"), "reasoning.effort"
    if body.get("reasoning_effort") is not None:
        given, param = body["reasoning_effort"], "reasoning_effort"
    switch = reasoning.get("enabled")
    options = {"enable_thinking": switch} if isinstance(switch, bool) else {}
    if given is None:
        return options
    if not isinstance(given, str) or not _EFFORT.fullmatch(given):
        raise InvalidRequest(
            f"{param} is not an effort.", hint="Use a word like low, medium or high.", param=param
        )
    if given == _NO_EFFORT:
        options["enable_thinking"] = False
    return {**options, "reasoning_effort": given}


def _thinking(body: Mapping[str, Any]) -> dict[str, Any]:
    """Anthropic's `{"type": "enabled" | "disabled"}`; anything else leaves it to the model."""
    given = body.get("thinking")
    kind = given.get("type") if isinstance(given, dict) else None
    return {"enable_thinking": _THINKING[kind]} if kind in ("enabled", "disabled") else {}


def _object(body: Mapping[str, Any], param: str) -> dict[str, Any]:
    given = body.get(param)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidRequest(f"{param} is not an object.", param=param)
    return given
