"""Tools and their choice, from the words of the Responses API."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from sessiond.api.dialect import Json
from sessiond.api.schemas import tool_choice
from sessiond.errors import InvalidRequest
from sessiond.metrics import TOOLS_LEFT_OUT
from sessiond.sessions.turn import ToolChoice

_FIELDS = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class _Listed:
    """`namespace`: the one that a client calls it in; the model knows it by its name alone."""

    tool: Json
    where: str
    namespace: str | None = None

    @property
    def is_function(self) -> bool:
        return self.tool.get("type") == "function"


def definitions(tools: Sequence[Json]) -> list[Json]:
    """The functions among them, as chat requests define them. Raises InvalidRequest."""
    listed = list(_listed(tools))
    plain = {one.tool.get("name") for one in listed if one.namespace is None}
    known = [one for one in listed if one.is_function and not _is_shadowed(one, plain)]
    TOOLS_LEFT_OUT.inc(len(listed) - len(known))
    return [_definition(one.tool, one.where) for one in known]


def namespaces(tools: Sequence[Json]) -> dict[str, str]:
    """Of the functions that are called in one, by their names."""
    listed = [one for one in _listed(tools) if one.is_function]
    plain = {one.tool.get("name") for one in listed if one.namespace is None}
    return {
        name: one.namespace
        for one in listed
        if one.namespace is not None
        and isinstance(name := one.tool.get("name"), str)
        and not _is_shadowed(one, plain)
    }


def _is_shadowed(one: _Listed, plain: Collection[object]) -> bool:
    """The model knows functions by their names: those outside of namespaces come first."""
    return one.namespace is not None and one.tool.get("name") in plain


def _listed(tools: Sequence[Json]) -> Iterator[_Listed]:
    """Codex puts the functions of one server into a namespace."""
    for index, tool in enumerate(tools):
        where, inner, name = f"tools[{index}]", tool.get("tools"), tool.get("name")
        if tool.get("type") != "namespace" or not isinstance(inner, list):
            yield _Listed(tool, where)
            continue
        for place, one in enumerate(inner):
            if isinstance(one, dict):
                namespace = name if isinstance(name, str) else None
                yield _Listed(one, f"{where}.tools[{place}]", namespace)


def flat(definition: str) -> Json:
    """As this API has it, from the JSON of a stored definition."""
    tool: Json = orjson.loads(definition)
    function = tool.get("function")
    fields = function if isinstance(function, dict) else tool
    return {"parameters": None, "strict": False, **fields, "type": "function"}


def choice(
    asked: Literal["none", "auto", "required"] | Mapping[str, Any] | None,
    parallel: bool,
    tools: Sequence[Json],
) -> ToolChoice:
    """`tools` as `definitions` gives them. Raises InvalidRequest.

    Of several allowed tools, any tool may be called: leaving some out would change the front.
    """
    if asked is None or isinstance(asked, str):
        return tool_choice(asked or "auto", None, parallel, tools)
    kind = asked.get("type")
    if kind == "function":
        return tool_choice("required", _name(asked), parallel, tools)
    if kind != "allowed_tools":
        raise InvalidRequest(
            f"tool_choice is of type {kind!r}.",
            hint="Only functions can be called here.",
            param="tool_choice.type",
        )
    if asked.get("mode") != "required":
        return tool_choice("auto", None, parallel, tools)
    allowed = asked.get("tools")
    only = allowed[0] if isinstance(allowed, list) and len(allowed) == 1 else None
    name = _name(only) if isinstance(only, dict) else None
    return tool_choice("required", name, parallel, tools)


def _name(chosen: Mapping[str, Any]) -> str:
    function = chosen.get("function")
    name = function.get("name") if isinstance(function, dict) else chosen.get("name")
    if isinstance(name, str) and name:
        return name
    raise InvalidRequest(
        "tool_choice names no tool.", hint="Give its name.", param="tool_choice.name"
    )


def _definition(tool: Json, where: str) -> Json:
    if isinstance(tool.get("function"), dict):
        return tool
    name, parameters = tool.get("name"), tool.get("parameters")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"'{where}.name' must be a string.", param=f"{where}.name")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(
            f"'{where}.parameters' must be an object.", param=f"{where}.parameters"
        )
    function = {
        field: tool[field] for field in tool if field in _FIELDS and tool[field] is not None
    }
    return {"type": "function", "function": function}
