"""What explorations of the OpenAPI document share: whom they ask, and how much of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import Phase, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.api.bounded import bounded

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
NAMES = ["work", "grüße", "a b", "new"]
"""The first three exist, and have a turn."""
SMALL = 4


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

    def keyless(self, label: str) -> list[httpx.Response]:
        """What a method and path answer without a key, and with two that are wrong."""
        method, path = label.split()
        named = path.format(session="s", name="n", response="resp_1", model="m")
        wrong = ({}, {"Authorization": b"Bearer other"}, {"X-Api-Key": b"\xff"})
        with httpx.Client(trust_env=False, timeout=30) as client:
            return [client.request(method, f"{self.url}{named}", headers=each) for each in wrong]

    def begin(self) -> None:
        for name in NAMES[:-1]:
            self.post("/v1/chat/completions", {**SAID, "session_id": name})

    def response(self) -> str:
        return str(self.post("/v1/responses", {"input": "Hi", "max_tokens": 1})["id"])


SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": SMALL}


def generated(examples: int) -> settings:
    return settings(bounded(examples), phases=[Phase.generate])


def random(examples: int) -> settings:
    phases = [Phase.generate, Phase.shrink]
    return settings(bounded(examples), derandomize=False, phases=phases)


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
