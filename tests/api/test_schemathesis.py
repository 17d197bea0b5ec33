"""schemathesis over the OpenAPI document: no 5xx, no answer that is not documented.

A bounded run here, a long one behind `make proof-api`. The daemon is whole but for its model; what
a document cannot say is repaired in valid requests, so that they get as far as a turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation

from sessiond.api.keys import Key, Keys
from sessiond.api.routing import ApiConfig
from tests.api.documented import DOCUMENT, ENDS, judge, judge_stream
from tests.api.exploring import CHECKS, NAMES, Daemon, generated, limited, random
from tests.api.living import living

MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
KEY = "proof"
EXPORTED = (Path(__file__).parents[1] / "sessions/golden/session-v1.sessiond").read_bytes()

SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
PLAIN = [label for label in OPERATIONS if "/s/{session}" not in label]
CHOSEN = [*PLAIN, "POST /s/{session}/v1/responses", "POST /s/{session}/v1/sessions"]
OPEN = ["HEAD /", "GET /", "GET /page.css", "GET /page.js", "GET /health", "GET /v1/health"]
STREAMS = [f"POST {path}" for path in ENDS]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with living(tmp_path_factory.mktemp("api")) as url:
        yield Daemon(url)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = ApiConfig(keys=Keys((Key.of("", KEY.encode()),)))
    with living(tmp_path_factory.mktemp("locked"), config) as url:
        yield Daemon(url, KEY)


def repaired(case: Case, daemon: Daemon) -> None:
    """Only what is valid: a request that is wrong stays wrong."""
    for name, drawn in list(case.path_parameters.items()):
        if name == "model":
            case.path_parameters[name] = "fake" if len(drawn) % 2 else drawn
        elif name == "response":
            case.path_parameters[name] = daemon.response() if len(drawn) % 4 else drawn
        elif len(drawn) % 4:
            case.path_parameters[name] = NAMES[len(drawn) % len(NAMES)]
    if case.operation.path.endswith("/import"):
        case.body = EXPORTED
    if isinstance(case.body, dict):
        repair_body(case.body)


def repair_body(body: dict[str, Any]) -> None:
    """Fields that exclude one another, and content that is only right with some roles."""
    for message in body.get("messages") or ():
        content = message.get("content")
        if content is None or (isinstance(content, list) and len(content) % 2):
            message["content"] = "Hi"
        elif isinstance(content, list):
            message["content"] = [{"type": "text", "text": "Hi"} for _ in content]
    if isinstance(body.get("input"), list):
        body["input"] = [{"role": "user", "content": "Hi"}, *body["input"][:1]]
    if body.get("prompt") == "":
        body["prompt"] = "Hi"
    for name in ("grammar", "json_schema", "tool_choice", "logit_bias", "previous_response_id"):
        if len(str(body.get(name))) % 3:
            body.pop(name, None)
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    tokens = body.get("tokens")
    if isinstance(tokens, list) and all(isinstance(token, int | float) for token in tokens):
        body["tokens"] = [int(token) % 250 for token in tokens]


def explore(operation: APIOperation, daemon: Daemon, how: settings) -> list[Counter[int]]:
    """Statuses of valid requests, and of wrong ones. Fails at an answer that is not documented."""
    daemon.begin()
    return [explore_mode(operation, daemon, how, mode) for mode in modes(operation)]


def explore_mode(
    operation: APIOperation, daemon: Daemon, how: settings, mode: GenerationMode
) -> Counter[int]:
    answers: Counter[int] = Counter()

    @how
    @given(operation.as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        if mode is GenerationMode.POSITIVE:
            repaired(case, daemon)
        limited(case)
        response = daemon.call(case)
        answers[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    run()
    return answers


def modes(operation: APIOperation) -> list[GenerationMode]:
    """Where there is nothing to send, nothing can be wrong with it."""
    raw = operation.definition.raw
    return MODES if raw.get("parameters") or raw.get("requestBody") else MODES[:1]


@pytest.mark.parametrize("label", CHOSEN)
def test_every_answer_is_documented(daemon: Daemon, label: str) -> None:
    explore(OPERATIONS[label], daemon, generated(4))


@pytest.mark.proof_api
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_documented_for_long(
    daemon: Daemon, label: str, record_property: Any
) -> None:
    valid, *wrong = explore(OPERATIONS[label], daemon, random(200))
    record_property("answers", [dict(valid), *map(dict, wrong)])
    assert [status for status in valid if status < 300], "nothing was ever done"


def stream(operation: APIOperation, daemon: Daemon, how: settings) -> None:
    @how
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def run(case: Case) -> None:
        repaired(case, daemon)
        limited(case)
        case.body["stream"] = True
        response = daemon.call(case)
        case.validate_response(response, checks=CHECKS)
        if response.status_code == 200:
            assert response.headers["content-type"][0].startswith("text/event-stream")
            judge_stream(operation.path, response.text)

    run()


@pytest.mark.parametrize("label", STREAMS)
def test_every_stream_ends_well(daemon: Daemon, label: str) -> None:
    stream(OPERATIONS[label], daemon, generated(8))


@pytest.mark.proof_api
@pytest.mark.parametrize("label", STREAMS)
def test_every_stream_ends_well_for_long(daemon: Daemon, label: str) -> None:
    stream(OPERATIONS[label], daemon, random(200))


def test_nothing_is_answered_without_the_key(locked: Daemon) -> None:
    """All at once: whoever has a wrong key waits for the answer."""
    with ThreadPoolExecutor(len(OPERATIONS)) as pool:
        for label, answers in zip(OPERATIONS, pool.map(locked.keyless, OPERATIONS), strict=True):
            method, path = label.split()
            for response in answers:
                assert response.status_code == (200 if label in OPEN else 401), label
                if method != "HEAD":
                    judge(path, method, response)


@pytest.mark.parametrize("label", STREAMS[2:])
def test_with_the_key_all_is_the_same(locked: Daemon, label: str) -> None:
    explore(OPERATIONS[label], locked, generated(3))
    assert locked.answers[401] == 0


@pytest.mark.proof_api
@pytest.mark.parametrize("label", PLAIN)
def test_with_the_key_all_is_the_same_for_long(locked: Daemon, label: str) -> None:
    explore(OPERATIONS[label], locked, random(50))
    assert locked.answers[401] == 0
