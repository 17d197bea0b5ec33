"""What a reply must look like, from what a request wants and how the model's family writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sessiond.chat.schema import checked
from sessiond.engine.constraint import (
    Constraint,
    Either,
    Form,
    Json,
    Literal,
    Maybe,
    Repeat,
    Row,
    Space,
    Words,
)
from sessiond.errors import InvalidRequest
from sessiond.sessions.calls.spelling import JsonCall, Spelling, TaggedCall
from sessiond.sessions.calls.tags import ANALYSIS, TAGS, opened_by
from sessiond.sessions.turn import ToolChoice

SCHEMA_PARAM = "response_format.json_schema.schema"
MOST_CALLS = 32
"""In one reply: a small model that may call again does so for ever."""
_ROOT = "parameters"
_VALUES = frozenset({"const", "enum", "default", "examples"})
_IDENTITIES = frozenset({"$id", "id"})
_DEEPEST = 16
_HARMONY_NEXT = "<|end|><|start|>assistant"
_HARMONY_ANSWER = "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Where reasoning may stand before a reply. `opened`: the prompt ends inside it.

    `possible`: the model may begin with it. `end` is all that stands between it and the reply,
    blanks aside, and `answer` what stands before words.
    """

    opened: bool = False
    possible: bool = False
    begin: str = "<think>"
    end: str = "</think>"
    answer: str = ""


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    parameters: dict[str, object]
    param: str


def thinking_of(family: str, template: str, prompt: str) -> Thinking:
    """Of a model of this family (`Format.name`), when its prompt is this text."""
    tag = opened_by(prompt)
    if family == "harmony":
        return Thinking(tag is not None, True, ANALYSIS.opens, _HARMONY_NEXT, _HARMONY_ANSWER)
    if tag is not None:
        return Thinking(opened=True, end=tag.closes[0])
    known = next((tag for tag in TAGS if tag.closes[0] in template), None)
    if known is None or prompt.rstrip().endswith(known.closes):
        return Thinking()
    return Thinking(possible=True, begin=known.opens, end=known.closes[0])


def constraint(
    choice: ToolChoice,
    tools: Sequence[str],
    schema: str | None,
    spelling: Spelling | None,
    thinking: Thinking = Thinking(),
) -> Constraint | None:
    """None where the model may write what it wants. Pure; schemas are not compiled here.

    `tools` are JSON definitions; `spelling` is None where no way to write calls is known. A reply
    with a schema may still be calls, where tools may be called. Raises InvalidRequest.
    """
    words = None if schema is None else _words(schema, thinking)
    if choice.mode == "required":
        return Constraint(_after_thinking(_forced(choice, tools, spelling), thinking))
    if words is None:
        return None
    if choice.mode == "auto" and tools and spelling is not None:
        calls = _calls(_read(tools), spelling, parallel=choice.parallel)
        return Constraint(_after_thinking(Either((words, calls)), thinking))
    return Constraint(_after_thinking(words, thinking))


def _words(schema: str, thinking: Thinking) -> Form:
    checked(schema, SCHEMA_PARAM)
    return Row((Literal(thinking.answer), Json(schema, SCHEMA_PARAM)))


def _after_thinking(form: Form, thinking: Thinking) -> Form:
    rest = Row((Words(thinking.end), Space()))
    if thinking.opened:
        return Row((rest, form))
    if thinking.possible:
        return Row((Maybe(Row((Literal(thinking.begin), rest))), form))
    return form


def _forced(choice: ToolChoice, tools: Sequence[str], spelling: Spelling | None) -> Form:
    if spelling is None:
        raise _refused("This model has no known way to write tool calls.", 'Use "auto".')
    known = [tool for tool in _read(tools) if choice.name in (None, tool.name)]
    if not known:
        raise _refused("tool_choice asks for a call, but there is no such tool.", "Send it.")
    return _calls(known, spelling, parallel=choice.parallel and choice.name is None)


def _calls(tools: Sequence[_Tool], spelling: Spelling, *, parallel: bool) -> Form:
    one = Either(tuple(_call(tool, spelling.call) for tool in tools))
    further = Repeat(Row((Literal(spelling.between), one)), MOST_CALLS - 1)
    more = (further,) if parallel and spelling.many else ()
    return Row((Literal(spelling.start), one, *more, Literal(spelling.end)))


def _call(tool: _Tool, way: JsonCall | TaggedCall) -> Form:
    begin, end = Literal(way.begin(tool.name)), Literal(way.after)
    if isinstance(way, JsonCall):
        arguments = {"type": "object"} | tool.parameters
        bare = _bare(tool, way, arguments)
        return bare or Row((begin, _json(arguments, tool), end))
    required = tool.parameters.get("required")
    wanted = required if isinstance(required, list) else []
    given = [
        (name, _parameter(way, tool, name, schema))
        for name, schema in _object(tool.parameters.get("properties")).items()
    ]
    return Row((begin, *(form if name in wanted else Maybe(form) for name, form in given), end))


def _bare(tool: _Tool, way: JsonCall, arguments: dict[str, object]) -> Json | None:
    """A call that is JSON and nothing else: as a schema it can stand beside that of a reply,
    which may begin with the same words.
    """
    try:
        written = json.loads(f"{way.begin(tool.name)}{{}}{way.after}")
    except ValueError:
        return None
    rebased = _rebased(arguments)
    properties = {key: {"const": value} if value else rebased for key, value in written.items()}
    shape = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return _json(_within(tool, shape), tool)


def _parameter(way: TaggedCall, tool: _Tool, name: str, schema: object) -> Form:
    begin, end = Literal(way.begin_parameter(name)), Literal(way.parameter_after)
    texts = _texts(_resolved(schema, tool.parameters))
    if texts is not None:
        return Row((begin, Either(tuple(map(Literal, texts))), end))
    if _may_be_text(schema, tool.parameters):
        return Row((begin, Words(way.parameter_after)))
    return Row((begin, _json(_within(tool, _object(_rebased(schema))), tool), end))


def _within(tool: _Tool, schema: dict[str, object]) -> dict[str, object]:
    """A schema whose references, rebased, lead into the tool's parameters."""
    if not tool.parameters:
        return schema
    return schema | {"$defs": {_ROOT: _rebased({"type": "object"} | tool.parameters)}}


def _rebased(schema: object) -> object:
    """References to the root of the parameters lead to where `_within` puts it."""
    if isinstance(schema, list):
        return [_rebased(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: value if key in _VALUES else _rebased(value)
        for key, value in schema.items()
        if key not in _IDENTITIES or not isinstance(value, str)
    }
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        found["$ref"] = f"#/$defs/{_ROOT}{reference[1:]}"
    return found


def _json(schema: dict[str, object], tool: _Tool) -> Json:
    return Json(json.dumps(schema, ensure_ascii=False), tool.param, lenient=True)


def _texts(schema: object) -> tuple[str, ...] | None:
    """The only texts it allows, if it names them all."""
    if not isinstance(schema, dict):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list) or not values:
        return None
    texts = tuple(value for value in values if isinstance(value, str))
    return texts if len(texts) == len(values) else None


def _may_be_text(schema: object, root: dict[str, object], depth: int = 0) -> bool:
    """A value that may be a string is written as it is, and so is one of no known type."""
    found = _resolved(schema, root)
    if not isinstance(found, dict) or depth > _DEEPEST:
        return True
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(among := found.get(key), list):
            return any(_may_be_text(one, root, depth + 1) for one in among)
    if "type" not in found and ("enum" in found or "const" in found):
        values = found.get("enum", [found.get("const")])
        return isinstance(values, list) and any(isinstance(value, str) for value in values)
    kinds = found.get("type", "string")
    return "string" in kinds if isinstance(kinds, list) else kinds == "string"


def _resolved(schema: object, root: dict[str, object]) -> object:
    """What a reference within the same schema stands for; None if that is nothing."""
    for _ in range(_DEEPEST):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            return schema
        schema = root
        for key in filter(None, reference.removeprefix("#").split("/")):
            name = key.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, dict) else None
    return None


def _read(tools: Sequence[str]) -> list[_Tool]:
    return [_tool(number, text) for number, text in enumerate(tools)]


def _tool(number: int, text: str) -> _Tool:
    """OpenAI's shape, or the same without `function` around it."""
    definition = _object(checked(text, f"tools[{number}]"))
    function = _object(definition.get("function")) or definition
    name, given = function.get("name"), function.get("parameters", function.get("input_schema"))
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"tools[{number}] has no name.", param=f"tools[{number}]")
    param = f"tools[{number}].function.parameters"
    if given is not None and not isinstance(given, dict):
        raise InvalidRequest("A tool's parameters must be a JSON schema.", param=param)
    return _Tool(name, given or {}, param)


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _refused(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, param="tool_choice")
