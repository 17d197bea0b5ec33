"""Sessions as files over HTTP: streamed both ways, named safely, larger than any other body."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from sessiond.api import deadline
from sessiond.api.keys import Key, Keys
from sessiond.api.routing import ApiConfig
from sessiond.api.upload import MOST_AT_ONCE, Uploads
from sessiond.errors import QueueFull, StoreFailed
from sessiond.sessions.transfer.exporting import Exported
from tests.api.conftest import LIMIT
from tests.api.documented import judge
from tests.api.living import living
from tests.api.scripted import ScriptedTurns
from tests.api.serving import until
from tests.sessions.files import members_of, with_turns

GOLDEN = Path(__file__).parents[1] / "sessions" / "golden" / "session-v1.sessiond"
FILE = {"Content-Type": "application/octet-stream"}
IMPORT = "/v1/sessions/import"
OURS, THEIRS = {"X-Api-Key": "k1"}, {"X-Api-Key": "k2"}


@pytest.fixture(scope="module")
def alive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A whole daemon."""
    with (
        living(tmp_path_factory.mktemp("transfer")) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


def judged(method: str, path: str, response: httpx.Response) -> httpx.Response:
    judge(path, method, response)
    return response


def said(client: httpx.Client, session: str, **headers: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 2}
    path = f"/s/{quote(session)}/v1/chat/completions"
    assert client.post(path, json=body, headers=headers).status_code == 200


# --- a whole daemon


def test_there_and_back(alive: httpx.Client) -> None:
    said(alive, "work")
    exported = judged("GET", "/v1/sessions/{name}/export", alive.get("/v1/sessions/work/export"))
    assert exported.headers["content-type"] == "application/x-tar"
    assert "work.sessiond" in exported.headers["content-disposition"]
    taken = alive.post(IMPORT, content=exported.content, headers=FILE, params={"name": "copy"})
    told = judged("POST", IMPORT, taken).json()
    assert taken.status_code == 201
    assert (told["session"]["name"], told["turns"]) == ("copy", 1)
    assert told["state_taken"] > 0
    assert alive.get("/v1/sessions/copy").json() == told["session"]
    turns = [alive.get(f"/v1/sessions/{name}/turns").json() for name in ("work", "copy")]
    assert turns[0] == turns[1]


def test_only_the_turns(alive: httpx.Client) -> None:
    said(alive, "light")
    whole = alive.get("/v1/sessions/light/export").content
    light = alive.get("/v1/sessions/light/export", params={"state": "false"}).content
    assert len(light) < len(whole)
    told = alive.post(IMPORT, content=light, headers=FILE, params={"name": "light2"}).json()
    assert (told["turns"], told["state_taken"], told["state_skipped"]) == (1, 0, 0)
    asked = {"name": "light3", "state": "false"}
    told = alive.post(IMPORT, content=whole, headers=FILE, params=asked).json()
    assert (told["state_taken"], told["skipped_because"]) == (0, "not asked for")


def test_the_name_in_the_file_and_a_second_time(alive: httpx.Client) -> None:
    first = judged("POST", IMPORT, alive.post(IMPORT, content=GOLDEN.read_bytes(), headers=FILE))
    assert (first.status_code, first.json()["session"]["name"]) == (201, "golden")
    assert first.json()["skipped_because"] == ""
    again = alive.post(IMPORT, content=GOLDEN.read_bytes(), headers=FILE)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_export"),
        (b"hello", 400, "invalid_export"),
        (GOLDEN.read_bytes()[:-700], 400, "invalid_export"),
    ],
    ids=["empty", "no export", "cut off"],
)
def test_a_bad_file(alive: httpx.Client, content: bytes, status: int, code: str) -> None:
    before = alive.get("/v1/sessions").json()["sessions"]
    answer = alive.post(IMPORT, content=content, headers=FILE, params={"name": "bad"})
    judged("POST", IMPORT, answer)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert len(answer.json()["error"]["message"]) > 10
    assert len(alive.get("/v1/sessions").json()["sessions"]) == len(before)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, "a\x00b", "\n"])
def test_a_bad_name(alive: httpx.Client, name: str) -> None:
    answer = alive.post(IMPORT, content=GOLDEN.read_bytes(), headers=FILE, params={"name": name})
    judged("POST", IMPORT, answer)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")


@pytest.mark.parametrize("name", ["grüße", "a b", "..", 'quo"te', "x\\y", "semi;colon"])
def test_a_file_name_is_data_and_safe(alive: httpx.Client, name: str) -> None:
    alive.post("/v1/sessions", json={"name": name})
    path = f"/v1/sessions/{quote(name, safe='').replace('.', '%2E')}/export"
    told = alive.get(path).headers["content-disposition"]
    given = told.partition('filename="')[2].partition('"')[0]
    assert given.endswith(".sessiond")
    assert set(given) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert not given.startswith((".", "-"))


def test_below_a_session_it_is_the_same(alive: httpx.Client) -> None:
    content = GOLDEN.read_bytes()
    answer = alive.post(f"/s/x{IMPORT}", content=content, headers=FILE, params={"name": "below"})
    assert answer.status_code == 201
    assert alive.get("/s/x/v1/sessions/below/export").status_code == 200


def test_an_unknown_session_has_no_file(alive: httpx.Client) -> None:
    answer = judged("GET", "/v1/sessions/{name}/export", alive.get("/v1/sessions/nobody/export"))
    assert answer.json()["error"]["code"] == "session_not_found"


def test_another_name(alive: httpx.Client) -> None:
    said(alive, "before")
    path = "/v1/sessions/{name}"
    renamed = judged(
        "PATCH", path, alive.patch("/v1/sessions/before", json={"name": " after ", "pinned": True})
    )
    assert (renamed.json()["name"], renamed.json()["pinned"]) == ("after", True)
    assert alive.get("/v1/sessions/before").status_code == 404
    said(alive, "before")
    taken = judged("PATCH", path, alive.patch("/v1/sessions/before", json={"name": "after"}))
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")


@pytest.mark.parametrize("body", [{"name": "a/b"}, {"name": ""}, {"name": 5}, {"pinned": "maybe"}])
def test_a_bad_change(alive: httpx.Client, body: dict[str, Any]) -> None:
    said(alive, "kept")
    before = alive.get("/v1/sessions/kept").json()
    answer = alive.patch("/v1/sessions/kept", json={**body, "policy": "fork"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(body)))
    assert alive.get("/v1/sessions/kept").json() == before


def test_every_owner_has_their_own(tmp_path: Path) -> None:
    """What one exports another may have, under their own keys, and cannot reach the first one's."""
    keys = Keys((Key.of("ann", b"k1"), Key.of("bob", b"k2")))
    with (
        living(tmp_path, ApiConfig(keys=keys)) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        said(client, "work", **OURS)
        file = client.get("/v1/sessions/work/export", headers=OURS).content
        assert client.get("/v1/sessions/work/export", headers=THEIRS).status_code == 404
        assert client.get("/v1/sessions/work/export").status_code == 401
        assert client.post(IMPORT, content=file, headers=FILE).status_code == 401
        assert b"ann" not in file
        taken = client.post(IMPORT, content=file, headers=FILE | THEIRS)
        assert (taken.status_code, taken.json()["session"]["name"]) == (201, "work")
        assert taken.json()["session"]["owner"] == "bob"
        told = taken.json()
        assert (told["state_taken"], told["state_skipped"] > 0) == (0, True)
        assert told["skipped_because"] == "only the administrator can import state"
        patched = client.patch("/v1/sessions/work", json={"name": "mine"}, headers=THEIRS)
        assert patched.json()["name"] == "mine"
        assert client.get("/v1/sessions/work", headers=OURS).json()["turns"] == 1


def test_only_the_administrator_brings_state(tmp_path: Path) -> None:
    """It reaches llama.cpp as it is. For an owner the administrator can bring it."""
    keys = Keys((Key.of("ann", b"k1"), Key.of("", b"k3")))
    with (
        living(tmp_path, ApiConfig(keys=keys)) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        said(client, "work", **OURS)
        file = client.get("/v1/sessions/work/export", headers=OURS).content
        headers = FILE | {"X-Api-Key": "k3", "X-Sessiond-Owner": "ann"}
        taken = client.post(IMPORT, content=file, headers=headers, params={"name": "more"})
        assert taken.json()["state_taken"] > 0
        assert client.get("/v1/sessions/more", headers=OURS).json()["owner"] == "ann"


def test_an_import_does_not_tell_what_others_have(tmp_path: Path) -> None:
    """Ids of responses that another owner has, and ids that nobody has, come to the same."""
    keys = Keys((Key.of("ann", b"k1"), Key.of("bob", b"k2")))
    with (
        living(tmp_path, ApiConfig(keys=keys)) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        asked = {"input": "Hi", "max_output_tokens": 2}
        headers = OURS | {"X-Session-Id": "work"}
        known = client.post("/v1/responses", json=asked, headers=headers).json()["id"]
        file = client.get("/v1/sessions/work/export", headers=OURS).content
        other = f"resp_{'0' * 48}"
        forged = with_turns(members_of(file), lambda turns: turns[0].update(response_id=other))
        for name, content, id_ in (("a", file, known), ("b", forged, other)):
            params = {"name": name}
            taken = client.post(IMPORT, content=content, headers=FILE | THEIRS, params=params)
            assert (taken.status_code, taken.json()["responses_dropped"]) == (201, 1)
            found = client.get(f"/v1/responses/{id_}", headers=THEIRS)
            assert found.status_code == 404
        assert client.get(f"/v1/responses/{known}", headers=OURS).status_code == 200


def test_a_file_without_room_is_refused_before_it_comes(alive: httpx.Client) -> None:
    host, port = alive.base_url.host, alive.base_url.port or 0
    with socket.create_connection((host, port), timeout=10) as peer:
        peer.sendall(upload_of(10**16))
        assert peer.recv(65536).startswith(b"HTTP/1.1 413 ")


# --- on the way


def upload_of(size: int, name: str = "n") -> bytes:
    """The head of a request."""
    return (
        f"POST {IMPORT}?name={name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()


class Parts(ScriptedTurns):
    """Exports what it is told to."""

    parts_begun = False
    parts_closed = 0
    fails_after: int | None = None
    endless = False

    async def export(self, name: str, *, state: bool) -> Exported:
        return Exported("n.sessiond", self._parts())

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        self.parts_begun = True
        try:
            sent = 0
            while self.endless or sent < 3:
                if sent == self.fails_after:
                    raise StoreFailed("The index is gone.")
                sent += 1
                yield b"x" * 65536
                await asyncio.sleep(0)
        finally:
            self.parts_closed += 1


@pytest.fixture(scope="module")
def streaming() -> Iterator[tuple[str, Parts]]:
    from tests.api.serving import served

    turns = Parts()
    with served(turns, ApiConfig(max_body=LIMIT)) as url:
        yield url, turns


def test_a_file_that_breaks_off_is_seen_to(
    streaming: tuple[str, Parts], caplog: pytest.LogCaptureFixture
) -> None:
    url, turns = streaming
    turns.fails_after, closed = 2, turns.parts_closed
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{url}/v1/sessions/n/export", trust_env=False)
    assert turns.parts_closed == closed + 1
    assert [r.levelname for r in caplog.records if r.name == "sessiond.api.errors"] == ["ERROR"]
    turns.fails_after = None
    assert len(httpx.get(f"{url}/v1/sessions/n/export", trust_env=False).content) == 3 * 65536


def test_who_leaves_in_the_middle_ends_the_export(streaming: tuple[str, Parts]) -> None:
    url, turns = streaming
    turns.endless, closed = True, turns.parts_closed
    with httpx.stream("GET", f"{url}/v1/sessions/n/export", trust_env=False) as response:
        next(response.iter_raw())
    until(lambda: turns.parts_closed == closed + 1)
    turns.endless = False


@contextmanager
def stalled_export(url: str) -> Iterator[None]:
    """Of a client that does not read."""
    parts = urlsplit(url)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect((parts.hostname or "", parts.port or 0))
        peer.sendall(b"GET /v1/sessions/n/export HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield


def test_an_export_that_nobody_reads_ends(
    streaming: tuple[str, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it has could be evicted as long as it goes on."""
    url, turns = streaming
    monkeypatch.setattr(deadline, "FETCH_SECONDS", 0.2)
    turns.endless, closed = True, turns.parts_closed
    with stalled_export(url):
        until(lambda: turns.parts_closed == closed + 1)
    turns.endless = False


def test_a_stop_ends_files_on_their_way(caplog: pytest.LogCaptureFixture) -> None:
    """
    1. A client does not go on reading an export, another one not with sending an import.
    Result: both are closed as if the client had left; nothing is cancelled, and nothing logged.
    """
    from tests.api.serving import served

    turns = Parts()
    turns.endless = True
    with ExitStack() as peers:
        with served(turns) as url:
            peers.enter_context(stalled_export(url))
            parts = urlsplit(url)
            place = (parts.hostname or "", parts.port or 0)
            sender = peers.enter_context(socket.create_connection(place))
            sender.sendall(upload_of(10**6) + b"abcd")
            until(lambda: _has(turns.file, 4) and turns.parts_begun)
        assert turns.parts_closed == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert turns.sessions == {}


def test_one_import_of_an_owner_at_a_time(
    url: str, turns: ScriptedTurns, client: httpx.Client
) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as peer:
        peer.sendall(upload_of(99) + b"abcd")
        until(lambda: _has(turns.file, 4))
        answer = client.post(IMPORT, content=b"x", headers=FILE, params={"name": "other"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) > 0
    until(lambda: client.post(IMPORT, content=b"x", headers=FILE).status_code == 201)


def test_few_imports_at_a_time() -> None:
    uploads = Uploads()
    with ExitStack() as coming:
        for number in range(MOST_AT_ONCE):
            coming.enter_context(uploads.one(str(number)))
        for owner in ("0", "other"):
            with pytest.raises(QueueFull), uploads.one(owner):
                pass
    with uploads.one("other"):
        pass


def test_an_import_is_not_held_to_the_limit_of_bodies(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    """And it is passed on as it comes, never as a whole."""
    sent = b"x" * (2 * LIMIT)
    answer = client.post(IMPORT, content=sent, headers=FILE)
    assert answer.status_code == 201
    assert b"".join(turns.file) == sent
    assert max(map(len, turns.file)) < LIMIT


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None]
)
def test_a_page_cannot_send_one_unasked(
    client: httpx.Client, turns: ScriptedTurns, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post(IMPORT, content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert (turns.file, turns.sessions) == ((), {})


@pytest.mark.parametrize("path", ["/v1/sessions/import/", "/v1/sessions//import", "/v1/import"])
def test_no_other_path_has_the_exception(
    client: httpx.Client, turns: ScriptedTurns, path: str
) -> None:
    assert client.post(path, content=b"x" * (LIMIT + 1), headers=FILE).status_code == 413


def test_a_taken_name_is_said_while_the_file_is_still_coming(
    url: str, turns: ScriptedTurns, client: httpx.Client
) -> None:
    """The sender never gets to the end. Result: the 409, then a close."""
    client.post("/v1/sessions", json={"name": "n"})
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as peer:
        peer.sendall(
            b"POST /v1/sessions/import?name=n HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"4\r\nabcd\r\n"
        )
        answer = b""
        while data := peer.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 409 ")
    assert b"conflict" in answer


def test_a_sender_that_leaves_is_no_failure(
    url: str, turns: ScriptedTurns, caplog: pytest.LogCaptureFixture
) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as peer:
        peer.sendall(
            b"POST /v1/sessions/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
            b"Content-Type: application/octet-stream\r\n\r\nabcd"
        )
        until(lambda: _has(turns.file, 4))
    answer = httpx.get(f"{url}/v1/sessions", trust_env=False)
    assert answer.json() == {"sessions": []}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def _has(file: Sequence[bytes], size: int) -> bool:
    return sum(map(len, file)) == size
