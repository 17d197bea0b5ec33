"""One answer of every kind, against the document: no status, type or field that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.documented import DOCUMENT, Json, judge
from tests.api.every_field import REQUESTS
from tests.api.living import living

TALKS = ["/v1/chat/completions", "/v1/messages", "/v1/responses"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        living(tmp_path_factory.mktemp("documented")) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


def judged(client: httpx.Client, method: str, path: str, **named: str) -> httpx.Response:
    response = client.request(method, path.format(**named))
    judge(path, method, response)
    return response


@pytest.fixture
def talked(client: httpx.Client) -> Json:
    """A session with turns, and the answer of its last one."""
    asked: Json = {"session_id": "work", "max_tokens": 2}
    client.post(
        "/v1/chat/completions", json={**asked, "messages": [{"role": "user", "content": "a"}]}
    )
    answer: Json = client.post("/v1/responses", json={**asked, "input": "Hi"}).json()
    return answer


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_posts(client: httpx.Client, path: str, body: Json) -> None:
    response = client.post(path, json=body)
    assert response.status_code in (200, 201)
    judge(path, "POST", response)


def test_gets(client: httpx.Client, talked: Json) -> None:
    paths = [path for path, methods in DOCUMENT["paths"].items() if "get" in methods]
    assert len(paths) >= 20
    for path in paths:
        named = {"session": "s", "name": "work", "model": "fake", "response": talked["id"]}
        assert judged(client, "GET", path, **named).status_code == 200


def test_what_is_done_with_sessions(client: httpx.Client, talked: Json) -> None:
    path = "/v1/sessions/{name}"
    for verb in ("park", "resume", "compact"):
        judged(client, "POST", f"{path}/{verb}", name="work")
    judge(path, "PATCH", client.patch("/v1/sessions/work", json={"policy": "fork"}))
    forked = client.post("/v1/sessions/work/fork", json={"name": "other"})
    assert forked.status_code == 201
    judge(f"{path}/fork", "POST", forked)
    assert judged(client, "DELETE", path, name="other").status_code == 204
    judged(client, "DELETE", "/v1/responses/{response}", response=talked["id"])
    judged(client, "POST", "/v1/verify")


@pytest.mark.parametrize("path", TALKS)
def test_too_long(client: httpx.Client, path: str) -> None:
    said: list[Any] = [{"role": "user", "content": "word " * 3000}]
    response = client.post(path, json={"messages": said, "input": said})
    assert response.status_code == 400
    assert "n_ctx" in response.json()["error"]
    judge(path, "POST", response)
