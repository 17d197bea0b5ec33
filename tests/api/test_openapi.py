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


def sent(document: Any) -> dict[str, Any]:
    """What the document says of requests: their parameters and bodies, with all that these use."""
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    found: dict[str, Any] = {
        f"{one['operationId']}/{place}": one[place]
        for one in operations
        for place in ("parameters", "requestBody")
        if place in one
    }
    while missing := set(references(found)) - found.keys():
        found |= {name: document["components"]["schemas"][name] for name in missing}
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].removeprefix("#/components/schemas/")
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from references(inner)


def unbounded(requests: Any) -> list[str]:
    return [
        path
        for path, schema in schemas(requests)
        if "const" not in schema
        and schema["type"] in BOUNDS
        and not any(bound in schema for bound in BOUNDS[schema["type"]])
    ]


def test_every_number_and_list_has_a_maximum(client: httpx.Client, turns: ScriptedTurns) -> None:
    requests = sent(client.get("/openapi.json").json())
    kinds = [schema["type"] for _, schema in schemas(requests)]
    assert min(kinds.count("integer"), kinds.count("number"), kinds.count("array")) >= 5
    assert {"ChatRequest", "MessagesRequest", "ResponseRequest", "MessageIn"} <= {
        name.rpartition("__")[2] for name in requests
    }
    assert unbounded(requests) == []


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


def test_every_route_says_what_it_answers(client: httpx.Client, turns: ScriptedTurns) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        error = "AnthropicError" if "/messages" in path else "ErrorBody"
        for method, operation in methods.items():
            answers = operation["responses"]
            assert "422" not in answers
            for kind in ("4XX", "5XX"):
                schema = answers[kind]["content"]["application/json"]["schema"]
                assert schema == {"$ref": f"#/components/schemas/{error}"}, (method, path)
            (done,) = (answers[status] for status in answers if status.startswith("2"))
            contents = done.get("content", {}).values()
            bodies = [media.get("schema", media.get("itemSchema", {})) for media in contents]
            assert bodies or method in ("delete", "head"), (method, path)
            assert {} not in bodies, (method, path)
