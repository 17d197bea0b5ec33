"""GET /v1/status and GET /v1/sessions/{name}/state: what they tell, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sessiond import __version__
from sessiond.api.keys import Key, Keys
from sessiond.api.routing import ApiConfig
from tests.api.documented import judge
from tests.api.living import living
from tests.api.scripted import ScriptedTurns, session_summary


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Alice has talked twice, bob once; the house has a key, too."""
    keys = Keys((Key.of("alice", b"a"), Key.of("bob", b"b"), Key.of("", b"house")))
    with living(tmp_path_factory.mktemp("status"), ApiConfig(keys=keys)) as url:
        for key, name in (("a", "work"), ("a", "play"), ("b", "work")):
            with calling(url, key) as client:
                said = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
                answer = client.post("/v1/chat/completions", json={**said, "session_id": name})
                assert answer.status_code == 200
        yield url


def calling(url: str, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30)


def status(url: str, key: str) -> Any:
    with calling(url, key) as client:
        answer = client.get("/v1/status")
        judge("/v1/status", "GET", answer)
    return answer.json()


def test_all_is_told_as_it_is_documented(url: str) -> None:
    told = status(url, "house")
    assert told["version"] == __version__
    assert told["health"]["status"] == "ok"
    assert told["gauges"]["cells"] == told["health"]["n_ctx"]
    assert told["gauges"]["cells_used"] > 0
    assert told["history"]["turns"] == len(told["history"]["shown"]) == 3
    assert told["history"]["since"] <= told["history"]["shown"][0]["time"] <= told["now"]
    assert told["sessions_total"] == len(told["sessions"]) == 3


@pytest.mark.parametrize(
    ("key", "sessions"),
    [
        ("a", ["play", "work"]),
        ("b", ["work"]),
        ("house", ["alice/play", "alice/work", "bob/work"]),
    ],
)
def test_everyone_is_told_of_own_sessions(url: str, key: str, sessions: list[str]) -> None:
    told = status(url, key)
    assert sorted(row["name"] for row in told["sessions"]) == sessions
    assert sorted(turn["session"] for turn in told["history"]["shown"]) == sessions
    assert told["history"]["turns"] == told["sessions_total"] == len(sessions)
    assert sum(span["turns"] for span in told["history"]["spans"]) == len(sessions)


def test_a_session_is_laid_open_to_its_owner(url: str) -> None:
    with calling(url, "a") as client:
        answer = client.get("/v1/sessions/play/state")
        judge("/v1/sessions/{name}/state", "GET", answer)
        told = answer.json()
        assert (told["session"], told["known"]) == ("play", True)
        last = told["last_turn"]
        assert last["position"] + last["evaluated"] == last["prompt_tokens"] > 0
        assert sum(block["length"] for block in told["blocks"]) == told["tokens"]
    with calling(url, "b") as client:
        assert client.get("/v1/sessions/play/state").status_code == 404
        assert client.get("/v1/sessions/work/state").json()["tokens"] > 0
    with calling(url, "house") as client:
        mine = {"X-Sessiond-Owner": "alice"}
        assert client.get("/v1/sessions/play/state", headers=mine).json()["tokens"] > 0


@pytest.mark.parametrize("path", ["/v1/status", "/v1/sessions/play/state", "/s/x/v1/status"])
@pytest.mark.parametrize("key", ["", "wrong"])
def test_nothing_is_told_without_a_key(url: str, path: str, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    assert httpx.get(f"{url}{path}", headers=headers, trust_env=False).status_code == 401


@pytest.mark.parametrize(("asked", "listed"), [("", 100), ("?sessions=3", 3), ("?sessions=0", 0)])
def test_a_number_of_sessions_is_listed_and_all_are_counted(
    client: httpx.Client, turns: ScriptedTurns, asked: str, listed: int
) -> None:
    turns.sessions = {f"s{at}": session_summary(f"s{at}", "fork") for at in range(120)}
    told = client.get(f"/v1/status{asked}").json()
    assert [row["name"] for row in told["sessions"]] == [f"s{at}" for at in range(listed)]
    assert told["sessions_total"] == 120


@pytest.mark.parametrize("asked", ["-1", "5001", "many", "1.5"])
def test_a_number_that_cannot_be_listed_is_named(
    client: httpx.Client, turns: ScriptedTurns, asked: str
) -> None:
    answer = client.get(f"/v1/status?sessions={asked}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sessions")
