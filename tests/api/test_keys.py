"""Keys: what a keys file may say, whose a key is, and that nothing answers without one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from sessiond.api.app import create_app
from sessiond.api.guards import _PUBLIC as PUBLIC
from sessiond.api.guards import Guard
from sessiond.api.keys import Key, Keys, is_owner, read_lines
from sessiond.api.patience import ADDRESSES, LONGEST_S, Patience
from sessiond.api.routing import ApiConfig
from sessiond.errors import ConfigError
from tests.api.scripted import ScriptedTurns

KEY = "sk-őr-1"
FILE = Path("api-keys")
FILLED = {"name": "n", "session": "s", "response": "resp_1", "model": "m", "model:path": "m"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    file = tmp_path / "keys"
    file.write_text(f"# agents\nlaptop {KEY}\nsk-two   # the phone\n\n", encoding="utf-8")
    return Keys.read(file)


def client(keys: Keys) -> httpx.AsyncClient:
    app = create_app(ScriptedTurns(), ApiConfig(keys=keys))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://evil.example:8484"
    )


def bearer(key: bytes) -> Headers:
    return Headers(raw=[(b"authorization", b"Bearer " + key)])


# --- the file


def test_a_short_key_is_warned_of_by_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be an owner whose key was forgotten, which would be a key of the house."""
    file = tmp_path / "keys"
    file.write_text("bob a-key-that-is-long-enough\nalice\n")
    Keys.read(file)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert f"{file}, line 2," in warned and "alice" not in warned


def test_a_line_is_a_key_an_owner_and_a_key_or_an_owner_and_a_hash(tmp_path: Path) -> None:
    hashed = Key.of("carol", b"sk-3")
    file = tmp_path / "keys"
    file.write_text(f"sk-1 # the house\nbob sk-2\n#bob sk-9\n{hashed.line}\nd. sk#4\r\n")
    known = Keys.read(file)
    said = {key: known.owner_of(bearer(key)) for key in (b"sk-1", b"sk-2", b"sk-3", b"sk#4")}
    assert said == {b"sk-1": "", b"sk-2": "bob", b"sk-3": "carol", b"sk#4": "d."}
    assert known.owner_of(bearer(b"sk-9")) is None
    assert known.owner_of(bearer(hashed.line.split()[1].encode())) is None


@pytest.mark.parametrize(
    "line",
    [
        b"alice bob SECRET",
        b"al/ice SECRET",
        b"al\xc3\xafce SECRET",
        b"a" * 65 + b" SECRET",
        b"alice sha256:5EC2E7",
        b"alice sha256:" + b"g" * 64,
        b"alice SECRET\xff",
        b"alice SHA256:5EC2E7",
        b"alice SECRET\x00",
        b"alice sk-known",
    ],
)
def test_a_bad_line_is_named_by_file_and_number_and_the_key_is_not_told(line: bytes) -> None:
    with pytest.raises(ConfigError) as raised:
        read_lines(b"# keys\nbob sk-known\n" + line + b"\n", FILE)
    assert f"{FILE}, line 3," in str(raised.value)
    assert raised.value.param == "auth.keys_file"
    for part in ("SECRET", "5EC2E7", "gggg", "sk-known"):
        assert part not in f"{raised.value} {raised.value.__cause__} {raised.value.__context__!r}"


def test_a_keys_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none cannot be read") as raised:
        Keys.read(tmp_path / "none")
    assert raised.value.param == "auth.keys_file"


OWNERS = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
WORDS = st.text(st.characters(codec="latin-1", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda word: not word.startswith(("#", "sha256:"))
)


@settings(max_examples=50)
@given(st.dictionaries(WORDS, OWNERS | st.just(""), max_size=8), st.booleans())
def test_every_key_of_a_file_is_its_owners_and_nothing_else_is_a_key(
    owners: dict[str, str], hashed: bool
) -> None:
    made = [Key.of(owner, word.encode()) for word, owner in owners.items()]
    plain = [f"{owner} {word}".strip() for word, owner in owners.items()]
    text = "\n".join([key.line for key in made] if hashed else plain)
    keys = Keys(tuple(key for key in read_lines(text.encode(), FILE) if key))
    assert [*keys.known] == made
    for word, owner in owners.items():
        assert keys.owner_of(bearer(word.encode())) == owner
        assert owners.get(f"{word}.") == keys.owner_of(bearer(f"{word}.".encode()))


@settings(max_examples=50)
@given(st.binary(max_size=200))
@example(b"\xff")
@example(b"a b c")
def test_whatever_a_file_has_it_is_read_or_refused_by_line(content: bytes) -> None:
    try:
        found = read_lines(content, FILE)
    except ConfigError as error:
        assert "line " in str(error)
    else:
        assert all(key is None or not key.owner or is_owner(key.owner) for key in found)


# --- the door


async def test_every_route_but_health_and_the_page_needs_a_key(keys: Keys) -> None:
    app = create_app(ScriptedTurns(), ApiConfig(keys=keys))
    pairs = {
        (method.upper(), path.format_map(FILLED))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }
    pairs |= {(method, path.format_map(FILLED)) for method, path in registered(app.routes)}
    private = {(method, path) for method, path in pairs if path not in {*PUBLIC, "/"}}
    assert len(private) >= 2 * 25
    assert {path for _, path in private} >= {"/metrics", "/v1/sessions/n", "/s/s/v1/responses"}
    async with client(keys) as http:
        for method, path in private:
            answer = await http.request(method, path, json={})
            assert answer.status_code == 401, (method, path)
            if method != "HEAD":
                assert answer.json()["error"].get("code", "") in ("invalid_api_key", "")


def registered(routes: object) -> set[tuple[str, str]]:
    """Of an application, whatever nests them."""
    found: set[tuple[str, str]] = set()
    for route in routes if isinstance(routes, list) else []:
        path, methods = getattr(route, "path", ""), getattr(route, "methods", None) or ()
        found |= {(method, path) for method in methods}
        found |= registered(getattr(route, "routes", None))
    return found


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}".encode()},
        {"authorization": b"bearer sk-two"},
        {"X-Api-Key": KEY.encode()},
        {"X-Api-Key": KEY.encode(), "Authorization": b"Bearer none"},
    ],
)
async def test_a_key_opens_the_door_under_any_host(keys: Keys, headers: dict[str, bytes]) -> None:
    async with client(keys) as http:
        answer = await http.get("/v1/sessions", headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "given", [b"", b"Bearer ", b"Bearer sk", b"Basic sk-two", b"Bearer \xe9", b"Bearer sha256:00"]
)
async def test_anything_else_is_401(keys: Keys, given: bytes) -> None:
    async with client(keys) as http:
        answer = await http.get("/v1/sessions", headers={"Authorization": given})
    assert answer.status_code == 401


async def test_health_is_public_but_not_to_foreign_hosts(keys: Keys) -> None:
    async with client(keys) as http:
        assert (await http.get("/health")).status_code == 403
        own = {"Host": "localhost"}
        assert (await http.get("/health", headers=own)).status_code == 200


async def test_keys_that_are_set_later_hold_for_the_requests_that_come_then(keys: Keys) -> None:
    app = create_app(ScriptedTurns(), ApiConfig())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:1") as http:
        assert (await http.get("/v1/sessions")).status_code == 200
        app.state.config = ApiConfig(keys=keys)
        assert (await http.get("/v1/sessions")).status_code == 401


# --- wrong keys


def test_the_wrong_key_is_answered_later_each_time_within_a_bound() -> None:
    now = [0.0]
    patience = Patience(lambda: now[0])
    waits = [patience.failed("192.0.2.1") for _ in range(2000)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert 0.0 < waits[1] < waits[-1] == LONGEST_S
    assert patience.failed("192.0.2.2") == 0.0
    now[0] = 3600.0
    assert patience.failed("192.0.2.1") == 0.0


def test_a_site_is_one_address_however_many_it_has() -> None:
    patience = Patience()
    assert patience.failed("2001:db8::1") == 0.0
    assert patience.failed("2001:db8::ffff%eth0") > 0.0
    assert patience.failed("2001:db8:1::1") == patience.failed("") == 0.0


def test_no_more_addresses_are_kept_than_a_bound() -> None:
    patience = Patience()
    for number in range(ADDRESSES + 10):
        patience.failed(f"10.0.{number // 256}.{number % 256}")
    assert len(patience) == ADDRESSES
    assert patience.failed("10.0.0.0") == 0.0
    assert patience.failed("10.0.3.255") > 0.0


async def test_who_waits_for_the_refusal_holds_up_nobody_and_no_key_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The pause ends when the test says so: meanwhile a right key from the same address is served,
    and a request without a key is refused at once.
    """
    caplog.set_level(logging.DEBUG)
    waits: list[float] = []
    go_on = asyncio.Event()

    async def pause(seconds: float) -> None:
        waits.append(seconds)
        await go_on.wait()

    app = create_app(ScriptedTurns(), ApiConfig(keys=Keys((Key.of("", b"right"),))))
    guard = Guard(app, pause)

    async def guarded(scope: object, receive: object, send: object) -> None:
        scope["app"] = app  # type: ignore[index]
        await guard(scope, receive, send)  # type: ignore[arg-type]

    transport = httpx.ASGITransport(guarded)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:1") as http:
        wrong = {"Authorization": "Bearer sk-CANARY"}
        assert (await http.get("/v1/sessions", headers=wrong)).status_code == 401
        assert waits == []
        held = asyncio.create_task(http.get("/v1/sessions", headers=wrong))
        while not waits:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        right = {"Authorization": "Bearer right"}
        assert (await http.get("/v1/sessions", headers=right)).status_code == 200
        assert (await http.get("/v1/sessions")).status_code == 401
        assert not held.done()
        go_on.set()
        assert (await held).status_code == 401
    assert len(waits) == 1
    assert "CANARY" not in caplog.text
