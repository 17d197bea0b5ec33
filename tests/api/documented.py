"""The OpenAPI document as a judge of answers: known status, known content type, known fields."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import httpx
import jsonschema

from sessiond.api.app import create_app
from sessiond.api.routing import ApiConfig
from tests.api.scripted import ScriptedTurns

Json = dict[str, Any]
DOCUMENT: Json = create_app(ScriptedTurns(), ApiConfig()).openapi()
OPEN = {"ErrorDetail", "AnthropicErrorDetail", "Item", "ResponseObject"}
"""What may have more fields than the document tells, which depend on what it is about."""
ENDS = {
    "/v1/chat/completions": ("[DONE]", "error"),
    "/v1/completions": ("[DONE]", "error"),
    "/v1/messages": ("message_stop", "error"),
    "/v1/responses": ("response.completed", "response.incomplete", "response.failed"),
}


def judge(path: str, method: str, response: httpx.Response) -> None:
    """`path` as the document has it. Fails for a 5xx and for all that is not documented."""
    status, text = response.status_code, response.text
    assert status < 500, text
    told = DOCUMENT["paths"][path][method.lower()]["responses"]
    answer = told.get(str(status)) or told.get(f"{status // 100}XX")
    assert answer is not None, f"{status} is not documented: {text}"
    media = response.headers.get("content-type", "").partition(";")[0]
    assert (media or None) in (answer.get("content") or {None: {}}), f"{media}: {text}"
    if media == "application/json":
        problems = list(validator(path, method, str(status)).iter_errors(response.json()))
        assert not problems, problems[0]
    elif media == "text/event-stream":
        judge_stream(path, text)


@cache
def validator(path: str, method: str, status: str) -> jsonschema.Draft202012Validator:
    told = DOCUMENT["paths"][path][method.lower()]["responses"]
    kind = status if status in told else f"{status[0]}XX"
    schema = told[kind]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": {"schemas": closed()}})


@cache
def closed() -> Json:
    """The schemas of the document, without room for fields that it does not tell."""
    return {
        name: schema if name in OPEN else {**schema, "additionalProperties": False}
        for name, schema in DOCUMENT["components"]["schemas"].items()
    }


def judge_stream(path: str, text: str) -> None:
    """Every event is JSON, the last one says how it ended, and nothing failed in between."""
    assert text.endswith("\n\n")
    ends = ENDS[path.removeprefix("/s/{session}")]
    kinds = [kind for block in text.split("\n\n") if (kind := _kind(block)) is not None]
    assert kinds, text
    assert kinds[-1] in ends, text
    assert not [kind for kind in kinds[:-1] if kind in ends], text


def _kind(block: str) -> str | None:
    """None for comments. Fails for an error that is our own fault."""
    data = "\n".join(
        line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")
    )
    if not data or data == "[DONE]":
        return data or None
    event = json.loads(data)
    response = event.get("response")
    failed = event.get("error") or (response.get("error") if isinstance(response, dict) else None)
    if failed is None:
        return str(event.get("type", "chunk"))
    codes = {failed.get(name) for name in ("code", "type")}
    assert not codes & {"internal_error", "api_error", "server_error"}, block
    return str(event.get("type", "error"))
