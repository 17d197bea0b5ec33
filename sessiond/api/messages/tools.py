"""Tools and their choice, from Anthropic's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sessiond.api.dialect import Json
from sessiond.api.messages.schemas import ToolChoiceIn
from sessiond.api.schemas import tool_choice
from sessiond.errors import InvalidRequest
from sessiond.metrics import TOOLS_LEFT_OUT
from sessiond.sessions.turn import ToolChoice

_MODES: dict[str, Literal["none", "auto", "required"]] = {
    "none": "none",
    "auto": "auto",
    "any": "required",
    "tool": "required",
}


def definitions(tools: Sequence[Json]) -> tuple[Json, ...]:
    """As OpenAI writes them. Raises InvalidRequest with `param`."""
    known = tuple(_definition(tool, f"tools[{i}]") for i, tool in enumerate(tools) if _known(tool))
    TOOLS_LEFT_OUT.inc(len(tools) - len(known))
    return known


def choice(asked: ToolChoiceIn | None, tools: Sequence[Json]) -> ToolChoice:
    """Of tools as OpenAI writes them. Raises InvalidRequest where there is none to choose."""
    if asked is None:
        return ToolChoice()
    name = asked.name if asked.type == "tool" else None
    if asked.type == "tool" and name is None:
        raise InvalidRequest(
            "tool_choice.name is missing.", hint="Name a tool.", param="tool_choice.name"
        )
    parallel = not asked.disable_parallel_tool_use
    return tool_choice(_MODES[asked.type], name, parallel, tools)


def _known(tool: Json) -> bool:
    return "input_schema" in tool


def _definition(tool: Json, where: str) -> Json:
    name, schema = tool.get("name"), tool["input_schema"]
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"'{where}.name' must be a string.", param=f"{where}.name")
    if not isinstance(schema, dict):
        raise InvalidRequest(
            f"'{where}.input_schema' must be an object.", param=f"{where}.input_schema"
        )
    given = {"name": name, "description": tool.get("description"), "parameters": schema}
    strict = {"strict": tool["strict"]} if isinstance(tool.get("strict"), bool) else {}
    function = {key: value for key, value in given.items() if value is not None}
    return {"type": "function", "function": {**function, **strict}}
