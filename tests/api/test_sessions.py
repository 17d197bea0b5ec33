"""The session routes do what they say, below /v1 and below any /s/{session}/v1."""

from __future__ import annotations

import httpx
import pytest

from tests.api.scripted import ScriptedTurns


@pytest.fixture(params=["/v1", "/s/elsewhere/v1"])
def root(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return f"{path}/sessions"


def test_the_life_of_a_session(client: httpx.Client, turns: ScriptedTurns, root: str) -> None:
    made = client.post(root, json={"name": " büro ", "policy": "fork"})
    assert (made.status_code, made.json()["name"], made.json()["policy"]) == (201, "büro", "fork")
    assert client.get(root).json() == {"sessions": [made.json()]}
    assert client.get(f"{root}/büro").json() == made.json()
    changed = client.patch(f"{root}/büro", json={"policy": "append-only"})
    assert changed.json()["policy"] == "append-only"
    assert client.post(f"{root}/büro/park").json()["state"] == "disk"
    gone = client.delete(f"{root}/büro")
    assert (gone.status_code, gone.content) == (204, b"")
    assert client.get(f"{root}/büro").status_code == 404


def test_a_name_is_taken_once(client: httpx.Client, turns: ScriptedTurns, root: str) -> None:
    assert client.post(root, json={"name": "n"}).json()["policy"] == "append-only"
    again = client.post(root, json={"name": "n"})
    assert (again.status_code, again.json()["error"]["param"]) == (409, "name")


def test_resume_turns_and_transcript_in_the_contracts_words(
    client: httpx.Client, turns: ScriptedTurns, root: str
) -> None:
    client.post(root, json={"name": "n"})
    resumed = client.post(f"{root}/n/resume").json()
    keys = {"source", "tokens", "restored_tokens", "prefilled_tokens", "restore_ms"}
    assert keys <= set(resumed)
    (turn,) = client.get(f"{root}/n/turns").json()["turns"]
    assert set(turn) == {
        "turn",
        "parent",
        "line",
        "role_of_new",
        "prompt_tokens",
        "cached_tokens",
        "prefilled_tokens",
        "completion_tokens",
        "source",
        "miss",
        "finish_reason",
        "ttft_ms",
        "created",
    }
    assert turn["role_of_new"] == ["user"]
    transcript = client.get(f"{root}/n/transcript").json()
    assert transcript == {"messages": [{"turn": 1, "role": "user", "content": "grüß dich"}]}


@pytest.mark.parametrize(
    ("method", "tail"),
    [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/resume"),
        ("POST", "/park"),
        ("POST", "/fork"),
        ("POST", "/compact"),
        ("GET", "/explain"),
        ("GET", "/turns"),
        ("GET", "/transcript"),
    ],
)
def test_an_unknown_session_is_not_found(
    client: httpx.Client, turns: ScriptedTurns, root: str, method: str, tail: str
) -> None:
    body = {"PATCH": {"policy": "fork"}, "POST/fork": {"name": "new"}}.get(
        method if method == "PATCH" else f"{method}{tail}"
    )
    response = client.request(method, f"{root}/nobody{tail}", json=body)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "session_not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": 5}, "name"),
        ({"name": "n", "policy": "strict"}, "policy"),
        ({"name": "n", "policy": "default"}, "policy"),
        ({"name": "n", "pinned_front": "clock"}, "pinned_front"),
        ({"name": "n", "pinned_front": ["clock"] * 33}, "pinned_front"),
        ({"name": "n", "pinned_front": ["x" * 501]}, "pinned_front[0]"),
        ({"name": "n", "pinned_front": ["default", "clock"]}, "pinned_front"),
    ],
)
def test_a_bad_new_session_names_its_field(
    client: httpx.Client, turns: ScriptedTurns, root: str, body: dict[str, object], param: str
) -> None:
    response = client.post(root, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert turns.sessions == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "policy"),
        ({"colour": "red"}, "policy"),
        ({"policy": None, "pinned_front": None}, "policy"),
        ({"policy": "strict"}, "policy"),
        ({"pinned_front": ["default", "clock"]}, "pinned_front"),
    ],
)
def test_a_change_that_says_nothing_or_nonsense_is_refused(
    client: httpx.Client, turns: ScriptedTurns, root: str, body: dict[str, object], param: str
) -> None:
    before = client.post(root, json={"name": "n"}).json()
    refused = client.patch(f"{root}/n", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert client.get(f"{root}/n").json() == before
