"""What a request's tools say of their arguments: needed where a model writes them without types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from sessiond.sessions.transcript import clean

Schema = Mapping[str, object]
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_DEEPEST = 16
_ANY: Schema = {}


class Tools:
    """The tools of one request. Without any, every name is known and every value is text."""

    def __init__(self, definitions: Iterable[str]) -> None:
        """JSON definitions, in OpenAI's shape or bare; what is none is not known."""
        self._schemas: dict[str, Schema] = {}
        for definition in definitions:
            tool = _object(_parsed(definition))
            function = _object(tool.get("function")) or tool
            if isinstance(name := function.get("name"), str):
                parameters = function.get("parameters", function.get("input_schema"))
                self._schemas[name] = _object(parameters)

    def knows(self, name: str) -> bool:
        return not self._schemas or name in self._schemas

    def typed(self, name: str, arguments: str) -> str:
        """Arguments whose values are all text, as the tool's schema wants them."""
        schema = self._schemas.get(name, _ANY)
        fields = _object(schema.get("properties"))
        given = _object(_parsed(arguments))
        values = {
            key: _of_type(value, _types(fields.get(key), schema))
            if isinstance(value, str)
            else value
            for key, value in given.items()
        }
        return clean(json.dumps(values, ensure_ascii=False))


def _of_type(text: str, types: frozenset[str]) -> object:
    """The text itself where it is none of these types, or a string is wanted."""
    written = text.strip()
    value = _parsed(_PYTHON.get(written, written))
    if value is None:
        wanted = written in ("null", "None") and "null" in types
        return None if wanted else text
    return value if "string" not in types and _type_names(value) & types else text


def _type_names(value: object) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"number", "integer"} if value.is_integer() else {"number"})
    if isinstance(value, dict):
        return frozenset({"object"})
    return frozenset({"array"} if isinstance(value, list) else ())


def _types(schema: object, root: Schema, depth: int = 0) -> frozenset[str]:
    """The names of the types a value may have; none where the schema does not say."""
    fields = _object(schema)
    if depth > _DEEPEST or not fields:
        return frozenset()
    if isinstance(reference := fields.get("$ref"), str):
        return _types(_referred(reference, root), root, depth + 1)
    found = fields.get("type")
    types = {found} if isinstance(found, str) else set(found) if isinstance(found, list) else set()
    for key in ("anyOf", "oneOf", "allOf"):
        among = fields.get(key)
        for one in among[:_DEEPEST] if isinstance(among, list) else ():
            types |= _types(one, root, depth + 1)
    for value in _values(fields):
        types |= {"string"} if isinstance(value, str) else _type_names(value)
    return frozenset(name for name in types if isinstance(name, str))


def _values(fields: Schema) -> list[object]:
    """Of an enumeration, where no type is named."""
    among = fields.get("enum", [fields["const"]] if "const" in fields else None)
    return among if isinstance(among, list) and "type" not in fields else []


def _referred(reference: str, root: Schema) -> object:
    found: object = root
    for key in reference.removeprefix("#/").split("/"):
        found = _object(found).get(key)
    return found


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _parsed(text: str) -> object:
    """None for what cannot be written as JSON again, too."""
    try:
        value: object = json.loads(text, strict=False)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value
