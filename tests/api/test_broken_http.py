"""What is hardly HTTP, and paths that nobody documents: an error object, and the server goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.bounded import bounded
from tests.api.living import living

GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
POST = (
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\n"
)
BODY = b'{"input": "Hi", "max_tokens": 1}'
BROKEN = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no target": b"GET\r\n\r\n",
    "NUL in the target": b"GET /v1/\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes in the target": "GET /s/grüß/props HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: other\r\n\r\n",
    "NUL in a header": GET + b"X-Session-Id: a\x00b\r\n\r\n",
    "no colon": GET + b"X-Session-Id\r\n\r\n",
    "a folded header without a first line": b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "negative length": POST + b"Content-Length: -5\r\n\r\n",
    "length that is no number": POST + b"Content-Length: many\r\n\r\n",
    "endless length": POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "unknown coding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "broken chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "no media type": POST.replace(b"Content-Type: application/json\r\n", b"") + b"Content-Length: 1"
    b"\r\n\r\n{",
    "packed body": POST + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
}
LEGAL = {
    "chunks with extensions": POST
    + b"Transfer-Encoding: chunked\r\n\r\n%x;a=b\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(BODY), BODY),
    "a mark before the body": POST
    + b"Content-Length: %d\r\n\r\n\xef\xbb\xbf%s" % (len(BODY) + 3, BODY),
    "an upgrade": GET + b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n",
    "HTTP/1.0": b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with living(tmp_path_factory.mktemp("broken")) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
        yield client


def answer(url: str, request: bytes) -> tuple[int, bytes, bytes]:
    """Status, head and body, once the server has closed the connection."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), body


@pytest.mark.parametrize("request_", BROKEN.values(), ids=BROKEN)
def test_what_is_broken_gets_an_error_object(url: str, request_: bytes) -> None:
    status, head, body = answer(url, request_)
    assert status in (400, 415)
    assert b"content-type: application/json" in head
    assert set(orjson.loads(body)["error"]) == {"message", "type", "code", "param"}


@pytest.mark.parametrize("request_", LEGAL.values(), ids=LEGAL)
def test_what_is_unusual_is_answered(url: str, request_: bytes) -> None:
    assert answer(url, request_)[0] == 200


def whatever(client: httpx.Client, how: settings) -> None:
    known = [b"s", b"v1", b"models", b"sessions", b"messages", b"responses", b"props", b"", b".."]

    @how
    @given(
        st.sampled_from(["GET", "POST", "DELETE", "PATCH", "PUT", "OPTIONS", "HEAD", "TRACE"]),
        st.lists(st.sampled_from(known) | st.binary(max_size=8), max_size=6),
        st.binary(max_size=12),
    )
    def run(method: str, steps: list[bytes], query: bytes) -> None:
        path = "/" + "/".join(quote(step, safe="") for step in steps)
        response = client.request(method, f"{client.base_url}{path}?{quote(query)}")
        assert response.status_code < 500, response.text
        if response.status_code >= 400 and method != "HEAD":
            assert set(response.json()) - {"type"} == {"error"}

    run()


def test_any_path_has_an_answer(client: httpx.Client) -> None:
    whatever(client, bounded(150))


@pytest.mark.proof_api
def test_any_path_has_an_answer_for_long(client: httpx.Client) -> None:
    whatever(client, settings(bounded(20_000), derandomize=False))
