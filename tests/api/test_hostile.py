"""What no OpenAPI document can send: broken fields, broken JSON, broken headers, broken HTTP.

No answer is a 5xx, and every answer is one that the document has.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.bounded import bounded
from tests.api.documented import ENDS, Json, judge
from tests.api.every_field import REQUESTS
from tests.api.living import living

Steps = tuple[str | int, ...]
IDS = [f"{path}#{number}" for number, (path, _) in enumerate(REQUESTS)]
ODD_NUMBERS = [0, -1, 1, 2**31, 2**53 + 1, 2**64, -(2**64), 10**400, 1e308, -0.0, 4.0, 0.5, True]
ODD_TEXTS = ["", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "￿", "🦀", "a" * 4000, "null"]
SCALARS = st.one_of(
    st.none(),
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_TEXTS),
    st.text(max_size=20),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
KEYS = st.sampled_from(
    ["type", "text", "content", "role", "name", "function", "id", "", "\x00", "$ref", "schema"]
) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)

HEADERS = [
    "x-session-id",
    "x-parent-session-id",
    "x-session-policy",
    "x-session-compact",
    "idempotency-key",
    "content-type",
    "content-encoding",
    "user-agent",
    "authorization",
    "x-api-key",
    "origin",
    "anthropic-beta",
    "anthropic-version",
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "thread-id",
    "session-id",
    "x-codex-parent-thread-id",
    "x-session-affinity",
    "x-conversation-id",
    "x-openwebui-chat-id",
    "x-litellm-session-id",
]
HEADER_BYTES = st.sampled_from(
    [b"", b"a", b"fork", b"allow", b"application/json", b"gzip", b"\xff\xfe", b"a/b", b"a" * 900]
) | st.binary(max_size=30).map(
    lambda given: bytes(byte for byte in given if byte > 31 and byte != 127).strip()
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        living(tmp_path_factory.mktemp("hostile")) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


def fuzzed(count: int) -> settings:
    return settings(bounded(count), derandomize=False)


def places(value: Any, steps: Steps = ()) -> Iterator[Steps]:
    yield steps
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for step, one in inner:
            yield from places(one, (*steps, step))


def broken(body: Json, steps: Steps, value: Any) -> Any:
    """With `value` in the place of what is there."""
    changed = copy.deepcopy(body)
    if not steps:
        return value
    parent: Any = changed
    for step in steps[:-1]:
        parent = parent[step]
    parent[steps[-1]] = value
    return changed


def without(body: Json, steps: Steps) -> Any:
    changed = copy.deepcopy(body)
    parent: Any = changed
    for step in steps[:-1]:
        parent = parent[step]
    del parent[steps[-1]]
    return changed


def sent(client: httpx.Client, path: str, body: Any, stream: bool = False) -> httpx.Response:
    if stream and isinstance(body, dict):
        body = {**body, "stream": True}
    return sent_raw(client, path, json.dumps(body).encode())


def sent_raw(client: httpx.Client, path: str, body: bytes, **headers: str) -> httpx.Response:
    given = {"content-type": "application/json", **headers}
    response = client.post(path, content=body, headers=given)
    judge(path, "POST", response)
    return response


def break_fields(client: httpx.Client, path: str, body: Json, how: settings) -> None:
    spots = list(places(body))

    @how
    @given(st.lists(st.sampled_from(spots[1:]), min_size=1, max_size=2), VALUES, st.booleans())
    def run(chosen: list[Steps], value: Any, stream: bool) -> None:
        changed = broken(body, chosen[0], value)
        if len(chosen) > 1 and chosen[1][: len(chosen[0])] != chosen[0]:
            changed = without(changed, chosen[1])
        sent(client, path, changed, stream)

    run()


@pytest.mark.parametrize(("path", "body"), [one for one in REQUESTS if one[0] in ENDS])
def test_all_fields_can_be_used_at_once(client: httpx.Client, path: str, body: Json) -> None:
    response = sent(client, path, body, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_any_field_may_be_anything(client: httpx.Client, path: str, body: Json) -> None:
    break_fields(client, path, body, bounded(15))


def break_text(client: httpx.Client, path: str, body: Json, how: settings) -> None:
    text = json.dumps(body)
    odd = ["\\ud800", "\\u0000", "\x00", "1e999", "-", "NaN", "{", "]", '"', "\\", "\n", "9" * 400]

    @how
    @given(
        st.integers(0, len(text)), st.integers(0, 12), st.sampled_from(odd) | st.text(max_size=4)
    )
    def run(start: int, length: int, put: str) -> None:
        changed = text[:start] + put + text[start + length :]
        sent_raw(client, path, changed.encode(errors="surrogatepass"))

    run()


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_a_body_may_be_anything(client: httpx.Client, path: str, body: Json) -> None:
    break_text(client, path, body, bounded(10))


@pytest.mark.proof_api
@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_a_body_may_be_anything_for_long(client: httpx.Client, path: str, body: Json) -> None:
    break_text(client, path, body, fuzzed(1000))


@pytest.mark.parametrize("depth", [63, 64, 100_000])
@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_any_depth(client: httpx.Client, path: str, body: Json, depth: int) -> None:
    for opening, closing in (("[", "]"), ('{"type":', "}")):
        nested = opening * depth + "1" + closing * depth
        for field in body:
            text = json.dumps({**body, field: "HERE"}).replace('"HERE"', nested)
            status = sent_raw(client, path, text.encode()).status_code
            assert status == 400 or depth < 64


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_the_last_of_two_keys_counts(client: httpx.Client, path: str, body: Json) -> None:
    for field in body:
        twice = f'{{"{field}": [[0]], {json.dumps(body)[1:]}'
        assert sent_raw(client, path, twice.encode()).status_code in (200, 201, 409)


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_a_body_in_pieces(client: httpx.Client, path: str, body: Json) -> None:
    whole = json.dumps(body).encode()
    pieces = (whole[start : start + 7] for start in range(0, len(whole), 7))
    response = client.post(path, content=pieces, headers={"content-type": "application/json"})
    judge(path, "POST", response)
    assert response.status_code in (200, 201, 409)


def odd_headers(client: httpx.Client, path: str, body: Json, how: settings) -> None:
    whole = json.dumps(body).encode()

    @how
    @given(st.dictionaries(st.sampled_from(HEADERS), HEADER_BYTES, max_size=4))
    def run(headers: dict[str, bytes]) -> None:
        given: dict[Any, bytes] = {"content-type": b"application/json"} | headers
        response = client.post(path, content=whole, headers=given)
        judge(path, "POST", response)

    run()


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_headers_may_have_any_bytes(client: httpx.Client, path: str, body: Json) -> None:
    odd_headers(client, path, body, bounded(8))


@pytest.mark.proof_api
@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_headers_may_have_any_bytes_for_long(client: httpx.Client, path: str, body: Json) -> None:
    odd_headers(client, path, body, fuzzed(1000))


@pytest.mark.proof_api
@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_any_field_may_be_anything_for_long(client: httpx.Client, path: str, body: Json) -> None:
    break_fields(client, path, body, fuzzed(1500))


@pytest.mark.proof_api
@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=IDS)
def test_every_field_with_every_odd_value(client: httpx.Client, path: str, body: Json) -> None:
    odd: list[Any] = [
        None,
        [],
        {},
        [None],
        [[]],
        {"": None},
        {"type": None},
        *ODD_NUMBERS,
        *ODD_TEXTS,
    ]
    for steps in places(body):
        for value in odd:
            sent(client, path, broken(body, steps, value))
