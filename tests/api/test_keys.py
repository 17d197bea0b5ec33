"""With keys, nothing but /health answers without one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from sessiond.api.app import create_app
from sessiond.api.keys import Keys
from sessiond.api.routing import ApiConfig
from sessiond.errors import ConfigError
from tests.api.scripted import ScriptedTurns

KEY = "sk-őr-1"
PUBLIC = {"/health", "/v1/health"}


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


async def test_every_route_but_health_needs_a_key(keys: Keys) -> None:
    app = create_app(ScriptedTurns(), ApiConfig(keys=keys))
    paths = {
        (method, route.path.replace("{name}", "n").replace("{session}", "s"))
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    private = {pair for pair in paths if pair[1] not in PUBLIC}
    assert private
    async with client(keys) as http:
        for method, path in private:
            answer = await http.request(method, path, json={})
            assert answer.status_code == 401, (method, path)
            if method != "HEAD":
                assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}".encode()},
        {"authorization": b"bearer sk-two"},
        {"X-Api-Key": KEY.encode()},
    ],
)
async def test_a_key_opens_the_door_under_any_host(keys: Keys, headers: dict[str, bytes]) -> None:
    async with client(keys) as http:
        answer = await http.get("/v1/sessions", headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("given", [b"", b"Bearer ", b"Bearer sk", b"Basic sk-two", b"Bearer \xe9"])
async def test_anything_else_is_401(keys: Keys, given: bytes) -> None:
    async with client(keys) as http:
        answer = await http.get("/v1/sessions", headers={"Authorization": given})
    assert answer.status_code == 401


async def test_health_is_public_but_not_to_foreign_hosts(keys: Keys) -> None:
    async with client(keys) as http:
        assert (await http.get("/health")).status_code == 403
        own = {"Host": "localhost"}
        assert (await http.get("/health", headers=own)).status_code == 200


def test_a_keys_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auth\.keys_file|none"):
        try:
            Keys.read(tmp_path / "none")
        except ConfigError as error:
            assert error.param == "auth.keys_file"
            raise
