"""Hermes and Qwen: JSON, or functions and parameters, between <tool_call> and </tool_call>."""

from __future__ import annotations

import re

from sessiond.sessions.calls.call import InlineCall, Taken, call, parsed

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_BARE = re.compile(
    r"<function=[^>\s]+>(?:(?!<function=).)*?</function>(?:\s*</tool_call>)?", re.DOTALL
)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>.*)?\Z", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)


def take(text: str) -> Taken | None:
    pattern = _CALL if "<tool_call>" in text else _BARE if "<function=" in text else None
    if pattern is None:
        return None
    calls: list[InlineCall] = []

    def found(match: re.Match[str]) -> str:
        inside = match[1] if pattern is _CALL else match[0]
        one = _of_json(inside) or _of_functions(inside)
        if one is None:
            return match[0]
        calls.append(one)
        return ""

    rest = pattern.sub(found, text)
    return (rest, tuple(calls)) if calls else None


def _of_json(text: str) -> InlineCall | None:
    value = parsed(text)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    return call(value["name"], value.get("arguments", value.get("parameters", {})))


def _of_functions(text: str) -> InlineCall | None:
    match = _FUNCTION.match(text)
    if match is None:
        return None
    body = match[2]
    given = parsed(body)
    return call(match[1], given if isinstance(given, dict) else dict(_PARAMETER.findall(body)))
