"""The OpenAPI document: every number and every list a client may send has an upper bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from tests.api.scripted import ScriptedTurns

BOUNDS = {
    "integer": ("maximum", "exclusiveMaximum"),
    "number": ("maximum", "exclusiveMaximum"),
    "array": ("maxItems",),
}


def schemas(value: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield path, value
        for key, inner in value.items():
            yield from schemas(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from schemas(inner, f"{path}/{index}")


def unbounded(document: Any) -> list[str]:
    return [
        path
        for path, schema in schemas(document)
        if "const" not in schema
        and schema["type"] in BOUNDS
        and not any(bound in schema for bound in BOUNDS[schema["type"]])
    ]


def test_every_number_and_list_has_a_maximum(client: httpx.Client, turns: ScriptedTurns) -> None:
    document = client.get("/openapi.json").json()
    kinds = [schema["type"] for _, schema in schemas(document)]
    assert min(kinds.count("integer"), kinds.count("number"), kinds.count("array")) >= 5
    assert unbounded(document) == []


def test_a_number_without_one_would_be_found() -> None:
    assert unbounded({"x": {"type": "integer"}, "y": {"type": "array", "maxItems": 3}}) == ["#/x"]


def test_everything_of_v1_is_also_below_a_session(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    plain = {path.removeprefix("/v1") for path in paths if path.startswith("/v1/")}
    below = {
        path.removeprefix("/s/{session}/v1") for path in paths if path.startswith("/s/{session}/v1")
    }
    assert plain == below
    assert {"/chat/completions", "/completions", "/models", "/health", "/verify"} <= plain
