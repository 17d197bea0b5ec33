"""schemathesis over the OpenAPI document: no 5xx, no answer that is not documented.

A bounded run here, a long one behind `make proof-api`. The daemon is whole but for its model; what
a document cannot say is repaired in valid requests, so that they get as far as a turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi import checks

from sessiond.api.keys import Key, Keys
from sessiond.api.routing import ApiConfig
from tests.api.documented import DOCUMENT, ENDS, judge, judge_stream
from tests.api.living import living

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
KEY = "proof"
NAMES = ["work", "grüße", "a b", "new"]
"""The first three exist, and have a turn."""
SMALL = 4
EXPORTED = (Path(__file__).parents[1] / "sessions/golden/session-v1.sessiond").read_bytes()

SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
BOUNDARIES = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="^/s/")
BOUNDARIES.config.phases.fuzzing.enabled = False
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
PLAIN = [label for label in OPERATIONS if "/s/{session}" not in label]
CHOSEN = [*PLAIN, "POST /s/{session}/v1/responses", "POST /s/{session}/v1/sessions"]
OPEN = ["HEAD /", "GET /", "GET /page.css", "GET /page.js", "GET /health", "GET /v1/health"]
STREAMS = [f"POST {path}" for path in ENDS]


class Daemon:
    """Calls it, and keeps alive what the paths of requests name."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.answers: Counter[int] = Counter()

    def call(self, case: Case) -> schemathesis.Response:
        response = case.call(
            base_url=self.url, session=self.session, headers=self.headers, timeout=30
        )
        self.answers[response.status_code] += 1
        return response

    def post(self, path: str, body: dict[str, Any], **headers: str) -> Any:
        url = f"{self.url}{path}"
        return self.session.post(url, json=body, headers=self.headers | headers).json()

    def begin(self) -> None:
        for name in NAMES[:-1]:
            self.post("/v1/chat/completions", {**SAID, "session_id": name})

    def response(self) -> str:
        return str(self.post("/v1/responses", {"input": "Hi", "max_tokens": 1})["id"])


SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": SMALL}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with living(tmp_path_factory.mktemp("api")) as url:
        yield Daemon(url)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = ApiConfig(keys=Keys((Key.of("", KEY.encode()),)))
    with living(tmp_path_factory.mktemp("locked"), config) as url:
        yield Daemon(url, KEY)


def bounded(examples: int) -> settings:
    """The same ones every time, so that it is either red or green."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )


def random(examples: int) -> settings:
    phases = [Phase.generate, Phase.shrink]
    return settings(bounded(examples), derandomize=False, phases=phases)


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
    if isinstance(body.get("tokens"), list):
        body["tokens"] = [int(token) % 250 for token in body["tokens"]]


def limited(case: Case) -> None:
    """Replies stay short, where the request would allow more; what is wrong stays so."""
    body = case.body
    if isinstance(body, dict) and body.keys() & {"messages", "prompt", "input"}:
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            asked = body.get(name)
            if type(asked) in (int, float) and asked > SMALL:
                body[name] = SMALL if asked < 2**31 else asked
        if body.get("max_tokens", 0) is None or "max_tokens" not in body:
            body["max_tokens"] = SMALL


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
    explore(OPERATIONS[label], daemon, bounded(4))


@pytest.mark.proof_api
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_documented_for_long(
    daemon: Daemon, label: str, record_property: Any
) -> None:
    valid, *wrong = explore(OPERATIONS[label], daemon, random(200))
    record_property("answers", [dict(valid), *map(dict, wrong)])
    assert [status for status in valid if status < 300], "nothing was ever done"


@pytest.mark.proof_api
@BOUNDARIES.parametrize()
@settings(bounded(1), phases=[Phase.explicit])
def test_every_bound_of_the_document(daemon: Daemon, case: Case) -> None:
    limited(case)
    case.validate_response(daemon.call(case), checks=CHECKS)


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
    stream(OPERATIONS[label], daemon, bounded(8))


@pytest.mark.proof_api
@pytest.mark.parametrize("label", STREAMS)
def test_every_stream_ends_well_for_long(daemon: Daemon, label: str) -> None:
    stream(OPERATIONS[label], daemon, random(200))


@pytest.mark.parametrize("label", OPERATIONS)
def test_nothing_is_answered_without_the_key(locked: Daemon, label: str) -> None:
    method, path = label.split()
    named = path.format(session="s", name="n", response="resp_1", model="m")
    url = f"{locked.url}{named}"
    for headers in ({}, {"Authorization": "Bearer other"}, {"X-Api-Key": "\xff"}):
        given = {name: value.encode("latin-1") for name, value in headers.items()}
        response = httpx.request(method, url, headers=given, trust_env=False)
        assert response.status_code == (200 if label in OPEN else 401)
        if method != "HEAD":
            judge(path, method, response)


@pytest.mark.parametrize("label", STREAMS[2:])
def test_with_the_key_all_is_the_same(locked: Daemon, label: str) -> None:
    explore(OPERATIONS[label], locked, bounded(3))
    assert locked.answers[401] == 0


@pytest.mark.proof_api
@pytest.mark.parametrize("label", PLAIN)
def test_with_the_key_all_is_the_same_for_long(locked: Daemon, label: str) -> None:
    explore(OPERATIONS[label], locked, random(50))
    assert locked.answers[401] == 0
