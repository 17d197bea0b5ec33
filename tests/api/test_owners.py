"""Two owners and the house on one daemon, over real sockets: none sees a word of another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sessiond.api.app import create_app
from sessiond.api.keys import Key, Keys
from sessiond.api.routing import ApiConfig
from sessiond.api.visitor import OWNER_HEADER
from sessiond.sessions.rules import Rules
from tests.api.scripted import ScriptedTurns, session_summary
from tests.api.serving import serving
from tests.sessions.kinds import rig_of

Json = dict[str, Any]
KEYS = {"alice": "sk-a", "bob": "sk-b", "": "sk-house"}
SECRETS = {"alice": "ALICE-4711", "bob": "BOB-0815", "": "HOUSE-2342"}
PRIVATE = {
    owner: "Dear diary, nobody reads on as far as this, and no title has so many words of it, so "
    f"that I can say it here: {secret}"
    for owner, secret in SECRETS.items()
}
CONFIG = ApiConfig(
    keys=Keys(tuple(Key.of(owner, key.encode()) for owner, key in KEYS.items())), keepalive=5.0
)
FRONT = "You keep the diary. " * 16
ASKED = "What did I write yesterday?"


@dataclass(frozen=True)
class Caller:
    """A client of one owner. Everything it is ever told is kept in `told`."""

    owner: str
    http: httpx.AsyncClient
    told: list[str]

    async def ask(
        self, method: str, path: str, body: Json | None = None, **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.http.request(method, path, json=body, headers=named)
        self.told.append(f"{answer.text}\n{dict(answer.headers)}")
        return answer

    async def chat(self, *said: str, front: str = FRONT, **headers: str) -> Json:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
        system = [{"role": "system", "content": front}]
        body: Json = {"messages": [*system, *messages], "max_tokens": 8, "temperature": 0}
        answer = await self.ask("POST", "/v1/chat/completions", body, **headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Session-Id"] == answer.json()["sessiond"]["session"]
        told: Json = answer.json()
        return told

    async def respond(self, text: str, **fields: object) -> httpx.Response:
        body: Json = {"input": text, "max_output_tokens": 8, "temperature": 0, **fields}
        return await self.ask("POST", "/v1/responses", body)

    async def names(self, **headers: str) -> list[str]:
        answer = await self.ask("GET", "/v1/sessions", **headers)
        return sorted(one["name"] for one in answer.json()["sessions"])


@dataclass(frozen=True)
class Three:
    alice: Caller
    bob: Caller
    house: Caller


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    async with asyncio.timeout(100), three_callers(tmp_path) as callers:
        yield callers


@asynccontextmanager
async def three_callers(directory: Path) -> AsyncGenerator[Three, None]:
    rig = rig_of("attention", directory, lines=8)
    rig.rules = Rules(max_rewind=1)
    async with rig.daemon() as daemon, serving(daemon.lifecycle, CONFIG) as url:
        callers = [Caller(owner, _http(url, key), []) for owner, key in KEYS.items()]
        try:
            yield Three(*callers)
        finally:
            for caller in callers:
                await caller.http.aclose()


def body_for(method: str, path: str) -> Json | None:
    """One that the route takes."""
    if path.endswith(("/chat/completions", "/messages", "/count_tokens", "/apply-template")):
        return {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 4}
    if path.endswith("/completions"):
        return {"prompt": ASKED, "max_tokens": 4}
    if path.endswith("/responses"):
        return {"input": ASKED, "max_output_tokens": 4}
    if path.endswith(("/tokenize", "/detokenize")):
        return {"content": ASKED, "tokens": [1]}
    if path.endswith(("/sessions", "/fork")) and method == "POST":
        return {"name": "n"}
    return {"policy": "fork"} if method == "PATCH" else None


def _http(url: str, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60)


def reuse(answer: Json) -> tuple[int, int]:
    block = answer["sessiond"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == block["cached_tokens"]
    assert answer["timings"]["cache_n"] == block["cached_tokens"]
    return block["cached_tokens"], block["restored_tokens"]


# --- names


async def test_one_name_is_a_session_for_each_owner(three: Three) -> None:
    for caller in (three.alice, three.bob, three.house):
        for said in ((ASKED,), (ASKED, "ok", "And today?")):
            answer = await caller.chat(*said, X_Session_Id="diary")
            assert answer["sessiond"]["session"] == "diary"
        turns = (await caller.ask("GET", "/v1/sessions/diary/turns")).json()["turns"]
        assert [turn["turn"] for turn in turns] == [1, 2]
    for caller in (three.alice, three.bob):
        assert await caller.names() == ["diary"]
        assert (await caller.ask("GET", "/v1/sessions/diary")).json()["owner"] == caller.owner


async def test_a_taken_name_is_taken_for_its_owner_only(three: Three) -> None:
    made = {"name": "diary", "policy": "fork"}
    for caller in (three.alice, three.bob, three.house):
        assert (await caller.ask("POST", "/v1/sessions", made)).status_code == 201
        again = await caller.ask("POST", "/v1/sessions", made)
        assert again.status_code == 409
        assert again.json()["error"]["message"] == "There is a session 'diary' already."


async def test_an_owner_is_told_its_own_names_in_every_answer(three: Three) -> None:
    """No answer has a full name in it: not a list, not an error, not the way out of a refusal."""
    alice = three.alice
    path, named = "/v1/sessions/my diary", "/s/my diary/v1/chat/completions"
    messages = [{"role": "system", "content": "It is 10:02 now. " + FRONT}]
    messages.append({"role": "user", "content": ASKED})
    body: Json = {"messages": messages, "max_tokens": 4}
    assert (await alice.ask("POST", "/v1/sessions", {"name": "my diary"})).status_code == 201
    first = await alice.ask("POST", named, body)
    reply = first.json()["choices"][0]["message"]
    stream = await alice.ask("POST", named, {**body, "stream": True})
    assert '"session":"my diary"' in stream.text
    later = [{"role": "system", "content": "It is 10:03 now. " + FRONT}, messages[1], reply]
    later.append({"role": "user", "content": "And then?"})
    refused = await alice.ask("POST", named, {**body, "messages": later})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["session"], error["cause"]) == ("my diary", "clock")
    assert error["message"].endswith("sessiond set 'my diary' --policy fork")
    explained = await alice.ask("GET", error["explain_url"])
    assert "sessiond set 'my diary' --policy fork" in explained.text
    asked = [
        ("POST", f"{path}/fork", {"name": "copy"}, 201),
        ("POST", f"{path}/fork", {"name": "copy"}, 409),
        ("POST", f"{path}/fork", {"name": "other", "at": 99}, 404),
        ("POST", f"{path}/park", None, 200),
        ("POST", f"{path}/resume", None, 200),
        ("POST", f"{path}/compact", None, 200),
        ("PATCH", path, {"policy": "fork"}, 200),
        ("GET", path, None, 200),
        ("GET", "/v1/sessions/none", None, 404),
        ("DELETE", "/v1/sessions/copy", None, 204),
    ]
    for method, where, given, status in asked:
        answer = await alice.ask(method, where, given)
        assert answer.status_code == status, (method, where, answer.text)
    await alice.chat("Hello", X_Claude_Code_Session_Id="grp:1")
    assert {one["group"] for one in (await listed(alice))} == {None, "grp"}
    for told in alice.told:
        assert "alice/" not in told
        assert "alice%2F" not in told


async def listed(caller: Caller) -> list[Json]:
    sessions: list[Json] = (await caller.ask("GET", "/v1/sessions")).json()["sessions"]
    return sessions


# --- what is another's does not exist


async def test_no_route_answers_an_owner_with_what_is_anothers(three: Three) -> None:
    """Every route there is, with the names and ids of alice, asked by bob; and by the house, which
    has to say for whom it asks.
    """
    alice, foreign = three.alice, (three.bob, three.house)
    await alice.chat(PRIVATE["alice"], X_Session_Id="diary")
    response = (await alice.respond(PRIVATE["alice"], conversation="diary")).json()["id"]
    before = await listed(alice)
    paths: Json = create_app(ScriptedTurns(), CONFIG).openapi()["paths"]
    asked = [
        (method.upper(), path, path.format(name="diary", session="x", response=response, model="m"))
        for path, methods in paths.items()
        for method in methods
    ]
    assert sum("{name}" in path for _, path, _ in asked) >= 2 * 10
    for caller in foreign:
        for method, path, filled in asked:
            answer = await caller.ask(method, filled, body_for(method, filled))
            if "{name}" in path or "{response}" in path:
                assert answer.status_code in (400, 404), (method, path, answer.text)
    for caller in foreign:
        assert [told for told in caller.told if SECRETS["alice"] in told] == []
    assert not any("alice" in told for told in three.bob.told)
    unchanged = ("name", "turns", "tokens", "policy", "owner")
    after = await listed(alice)
    assert [[one[field] for field in unchanged] for one in after] == [
        [one[field] for field in unchanged] for one in before
    ]
    assert (await alice.ask("GET", f"/v1/responses/{response}")).status_code == 200


async def test_a_foreign_session_is_answered_as_one_that_is_not_there(three: Three) -> None:
    await three.alice.chat(ASKED, X_Session_Id="diary")
    there = await three.bob.ask("GET", "/v1/sessions/diary")
    absent = await three.bob.ask("GET", "/v1/sessions/diarx")
    assert there.status_code == absent.status_code == 404
    assert there.text == absent.text.replace("diarx", "diary")
    assert three.bob.told[0].count("alice") == 0


async def test_a_full_name_leads_nowhere(three: Three) -> None:
    await three.alice.chat(ASKED, X_Session_Id="diary")
    for caller in (three.bob, three.house, three.alice):
        for path in ("/v1/sessions/alice%2Fdiary", "/s/alice%2Fdiary/v1/sessions"):
            assert (await caller.ask("GET", path)).status_code == 404
        header = await caller.ask(
            "POST", "/v1/completions", {"prompt": "x"}, X_Session_Id="alice/d"
        )
        body = await caller.ask("POST", "/v1/sessions", {"name": "alice/d"})
        assert (header.status_code, body.status_code) == (400, 400)


async def test_a_response_is_gone_on_from_by_its_owner_only(three: Three) -> None:
    first = (await three.alice.respond(PRIVATE["alice"])).json()
    item = first["output"][0]["id"]
    for caller in (three.bob, three.house):
        foreign = await caller.respond("And?", previous_response_id=first["id"])
        made_up = await caller.respond("And?", previous_response_id="resp_" + "0" * 48)
        assert foreign.status_code == made_up.status_code == 400
        assert foreign.json()["error"]["code"] == "previous_response_not_found"
        reference = [{"type": "item_reference", "id": item}, {"role": "user", "content": "x"}]
        answer = await caller.ask("POST", "/v1/responses", {"input": reference})
        assert answer.status_code == 400
        deleted = await caller.ask("DELETE", f"/v1/responses/{first['id']}")
        assert deleted.status_code == 404
    own = await three.alice.respond("And?", previous_response_id=first["id"])
    assert own.json()["sessiond"]["session"] == first["sessiond"]["session"]
    assert own.json()["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_a_sub_agent_begins_with_its_owners_parent_only(three: Three) -> None:
    alice, bob = three.alice, three.bob
    first = await alice.chat(ASKED, X_Session_Affinity="root")
    reply = first["choices"][0]["message"]["content"]
    child = {"X_Session_Affinity": "sub", "X_Parent_Session_Id": "root"}
    foreign = await bob.chat(ASKED, reply, "Look into it.", **child)
    own = await alice.chat(ASKED, reply, "Look into it.", **child)
    assert reuse(foreign) == (0, 0)
    assert foreign["sessiond"]["turn"] == 1
    assert reuse(own)[0] > 0
    assert own["sessiond"]["turn"] == 2


@pytest.mark.parametrize("name", ["diary", None])
async def test_a_retry_is_taken_for_one_of_the_same_owner_only(
    three: Three, name: str | None
) -> None:
    named = {"X_Session_Id": name} if name else {}
    answers = [
        await caller.chat(ASKED, Idempotency_Key="key-1", **named)
        for caller in (three.alice, three.bob, three.alice, three.bob)
    ]
    sessions = [answer["sessiond"]["session"] for answer in answers]
    assert sessions[:2] == sessions[2:]
    assert answers[0]["sessiond"] == answers[2]["sessiond"]
    assert [reuse(answer) for answer in answers] == [(0, 0)] * 4
    assert len(await three.house.names()) == 2


async def test_words_of_one_owner_are_in_no_answer_to_another(three: Three) -> None:
    """All say the same first words, with a secret of their own, again and again."""
    callers = {"alice": three.alice, "bob": three.bob, "": three.house}
    for round_ in range(3):
        for owner, caller in callers.items():
            said = f"Round {round_}. {PRIVATE[owner]}"
            await caller.chat(said, X_Session_Id="diary")
            await caller.chat(said)
            for path in ("", "/diary", "/diary/turns", "/diary/transcript", "/diary/explain"):
                await caller.ask("GET", f"/v1/sessions{path}")
            await caller.ask("GET", "/health")
            await caller.ask("GET", "/metrics")
    for owner, caller in callers.items():
        told = "".join(caller.told)
        assert SECRETS[owner] in told
        for other in SECRETS.keys() - {owner}:
            assert SECRETS[other] not in told


async def test_the_metrics_have_no_names(three: Three) -> None:
    await three.alice.chat(ASKED, X_Session_Id="diary-of-alice")
    for caller in (three.alice, three.bob, three.house):
        told = (await caller.ask("GET", "/metrics")).text
        assert "sessiond_" in told
        for name in ("alice", "bob", "diary"):
            assert name not in told


# --- sharing


async def test_what_one_has_said_costs_another_as_much_as_what_nobody_has_said(
    three: Three,
) -> None:
    """The timing side channel, as counts, with the control that finds what is there."""
    await three.alice.chat(ASKED, X_Session_Id="one")
    foreign = [
        reuse(await caller.chat(ASKED, X_Session_Id="one")) for caller in (three.bob, three.house)
    ]
    control = await three.alice.chat(ASKED, X_Session_Id="two")
    assert foreign == [(0, 0), (0, 0)]
    assert reuse(control)[0] == control["usage"]["prompt_tokens"] - 1 > 0
    parked = await three.alice.ask("POST", "/v1/sessions/one/park")
    assert parked.json()["bytes"] > 0


async def test_a_fork_stays_with_its_owner(three: Three) -> None:
    await three.alice.chat(ASKED, X_Session_Id="diary")
    await three.alice.ask("POST", "/v1/sessions/diary/fork", {"name": "copy"})
    assert await three.alice.names() == ["copy", "diary"]
    assert await three.bob.names() == []
    again = await three.alice.chat(ASKED, X_Session_Id="copy")
    assert reuse(again)[0] > 0


# --- the administrator


async def test_the_administrator_sees_all_and_acts_for_an_owner(three: Three) -> None:
    house = three.house
    for caller in (three.alice, three.bob, house):
        await caller.chat(PRIVATE[caller.owner], X_Session_Id="diary")
    everything = {one["name"]: one["owner"] for one in await listed(house)}
    assert everything == {"alice/diary": "alice", "bob/diary": "bob", "diary": ""}
    acting = {"X_Sessiond_Owner": "alice"}
    assert await house.names(**acting) == ["alice/diary"]
    shown = (await house.ask("GET", "/v1/sessions/diary", **acting)).json()
    assert (shown["name"], shown["owner"]) == ("alice/diary", "alice")
    said = (await house.ask("GET", "/v1/sessions/diary/transcript", **acting)).text
    assert SECRETS["alice"] in said
    resumed = await house.ask("POST", "/v1/sessions/diary/resume", **acting)
    assert resumed.json()["session"] == "alice/diary"
    answer = await house.chat("For alice.", X_Session_Id="made", **acting)
    assert answer["sessiond"]["session"] == "made"
    assert await three.alice.names() == ["diary", "made"]
    assert await house.names(X_Sessiond_Owner="nobody") == []
    assert (await house.ask("DELETE", "/v1/sessions/diary", **acting)).status_code == 204
    assert await three.alice.names() == ["made"]
    assert await three.bob.names() == ["diary"]


async def test_only_the_administrator_acts_for_others(three: Three) -> None:
    for path in ("/v1/sessions", "/health", "/metrics"):
        refused = await three.bob.ask("GET", path, X_Sessiond_Owner="alice")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert (await three.bob.ask("GET", path, X_Sessiond_Owner="bob")).status_code == 200
    for name in ("a/b", "", "a b", "a" * 65):
        bad = await three.house.ask("GET", "/v1/sessions", X_Sessiond_Owner=name)
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, OWNER_HEADER)


async def test_over_the_unix_socket_and_without_keys_everybody_is_the_administrator() -> None:
    """An application without a port is how a unix socket looks to it."""
    for config, base in ((CONFIG, "http://localhost"), (ApiConfig(), "http://localhost:1")):
        turns = ScriptedTurns()
        for name in ("alice/diary", "diary"):
            turns.sessions[name] = session_summary(name, "fork")
        transport = httpx.ASGITransport(create_app(turns, config))
        async with httpx.AsyncClient(transport=transport, base_url=base) as http:
            whole = (await http.get("/v1/sessions")).json()["sessions"]
            assert [one["name"] for one in whole] == ["alice/diary", "diary"]
            acting = {OWNER_HEADER: "alice"}
            shown = await http.get("/v1/sessions/diary", headers=acting)
            assert shown.json()["name"] == "alice/diary"


def test_routes_are_given_the_daemon_as_a_visitor_sees_it() -> None:
    """Whatever asks the application for its turns goes round that."""
    folder = Path(__file__).parents[2] / "sessiond"
    naming = [
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*.py")
        if "state.turns" in file.read_text()
    ]
    assert sorted(naming) == ["api/app.py", "api/routing.py"]
