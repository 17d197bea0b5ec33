"""The append-only policy over HTTP, with all of a daemon behind it but the model."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.serving import serving
from tests.api.test_policy import BODY, CHAT, MESSAGE, Json
from tests.rig import Daemon
from tests.sessions.kinds import rig_of


@asynccontextmanager
async def talking(directory: Path) -> AsyncGenerator[tuple[Daemon, httpx.AsyncClient], None]:
    async with (
        rig_of("attention", directory).daemon() as daemon,
        serving(daemon.lifecycle) as url,
        httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client,
    ):
        yield daemon, client


def at(clock: str, *said: str) -> list[Json]:
    """SECRET stands beside the clock."""
    front = f"You pay the bills of SECRET & Sons. It is {clock} now. Be terse."
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return [{"role": "system", "content": front}, *messages]


async def said(client: httpx.AsyncClient, messages: list[Json], **headers: str) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    sent = {f"X-Session-{name.title()}": value for name, value in headers.items()}
    return await client.post(CHAT, json=body, headers=sent)


def reply(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def test_a_clock_is_refused_and_explained_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sessiond")
    async with talking(tmp_path) as (daemon, client):
        first = reply(await said(client, at("10:02", "Pay the rent.")))
        before = (await client.get("/v1/sessions/billing/turns")).json(), daemon.evaluated
        changed = at("10:03", "Pay the rent.", first, "And the gas.")
        refused = await said(client, changed)
        error = refused.json()["error"]
        assert (refused.status_code, refused.headers["x-should-retry"]) == (400, "false")
        assert list(error) == list(BODY["error"])
        assert error["message"] == MESSAGE
        assert len(error["message"]) <= 250
        session = (await client.get("/v1/sessions/billing")).json()
        char = at("10:02")[0]["content"].index("10:02") + 4
        token = len(f"<|im_start|>system\n{at('10:02')[0]['content'][:char]}") - len("|im_start|>")
        assert error == {
            **BODY["error"],
            "first_diff": {**BODY["error"]["first_diff"], "char": char, "token": token},
            "reusable_tokens": token,
            "discarded_tokens": session["tokens"] - token,
            "estimated_prefill_ms": error["estimated_prefill_ms"],
        }
        assert error["estimated_prefill_ms"] >= 0
        after = (await client.get("/v1/sessions/billing/turns")).json(), daemon.evaluated
        assert after == before
        told = (await client.get(error["explain_url"])).json()
        (rewrite,) = told["rewrites"]
        assert (rewrite["outcome"], rewrite["turn"]) == ("refused", None)
        assert "SECRET & Sons. It is 10:02 now." in rewrite["before"]
        assert "SECRET & Sons. It is 10:03 now." in rewrite["after"]
        assert rewrite["first_diff"] == error["first_diff"]
        assert rewrite["session_tokens"] == session["tokens"]
        assert any("--policy fork" in way for way in rewrite["ways"])
        assert any("--pinned-front clock" in way for way in rewrite["ways"])
        assert told["misses"] == []
        going_on = reply(await said(client, at("10:02", "Pay the rent.", first, "And the gas.")))
        assert going_on
    assert any(record.name.startswith("sessiond.sessions") for record in caplog.records)
    assert "SECRET" not in caplog.text
    assert "10:02" not in caplog.text


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_refusal_changes_no_turn_of_a_stream_either(tmp_path: Path, streamed: bool) -> None:
    async with talking(tmp_path) as (_, client):
        first = reply(await said(client, at("10:02", "Pay the rent.")))
        body = {"messages": at("10:03", "Pay the rent.", first, "Go on."), "stream": streamed}
        refused = await client.post(CHAT, json=body)
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/json"
        assert refused.json()["error"]["cause"] == "clock"


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [({"policy": "fork"}, "forked"), ({"compact": "allow"}, "compacted")],
    ids=["fork", "compact"],
)
async def test_a_header_lets_one_request_through_and_says_why(
    tmp_path: Path, headers: dict[str, str], outcome: str
) -> None:
    async with talking(tmp_path) as (_, client):
        first = reply(await said(client, at("10:02", "Pay the rent.")))
        changed = at("10:03", "Pay the rent.", first, "And the gas.")
        assert (await said(client, changed)).status_code == 400
        through = (await said(client, changed, **headers)).json()["sessiond"]
        assert through["turn"] == 2
        assert through["miss"]["cause"] == "clock"
        assert through["miss"]["message"] == "The system prompt changed (clock 10:02 → 10:03)."
        told = (await client.get("/v1/sessions/billing/explain")).json()
        assert [(r["turn"], r["outcome"]) for r in told["rewrites"]] == [
            (None, "refused"),
            (2, outcome),
        ]
        assert [(turn["turn"], turn["miss"]) for turn in told["misses"]] == [(2, through["miss"])]
        later = at("10:04", "Pay the rent.", first, "And the gas.")
        assert (await said(client, later)).status_code == 400


async def test_compact_lets_one_rewrite_through_and_no_second(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, client):
        first = reply(await said(client, at("10:02", "Pay the rent.")))
        allowed = await client.post("/v1/sessions/billing/compact")
        assert (allowed.status_code, allowed.json()["may_compact"]) == (200, True)
        second = reply(await said(client, at("10:03", "Pay the rent.", first, "And the gas.")))
        assert (await client.get("/v1/sessions/billing")).json()["may_compact"] is False
        third = at("10:04", "Pay the rent.", first, "And the gas.", second, "And the water.")
        assert (await said(client, third)).status_code == 400


async def test_a_pinned_front_and_the_policy_are_set_and_taken_back(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, client):
        first = reply(await said(client, at("10:02", "Pay the rent.")))
        changed = at("10:03", "Pay the rent.", first, "And the gas.")
        path = "/v1/sessions/billing"
        assert (await said(client, changed)).status_code == 400
        pinned = await client.patch(path, json={"pinned_front": ["clock"]})
        assert pinned.json()["pinned_front"] == ["clock"]
        assert (await said(client, changed)).json()["sessiond"]["miss"] is None
        await client.patch(path, json={"pinned_front": ["default"], "policy": "fork"})
        summary = (await client.get(path)).json()
        assert (summary["pinned_front"], summary["policy"]) == ([], "fork")
        assert (await said(client, at("10:05", "Pay the rent.", first, "Now?"))).status_code == 200
        reset = await client.patch(path, json={"policy": "default"})
        assert reset.json()["policy"] == "append-only"
        bad = await client.patch(path, json={"pinned_front": ["("]})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "pinned_front")


async def test_a_fork_goes_on_without_reading_again(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, client):
        first = reply(await said(client, at("10:02", "Pay the rent.")))
        reply(await said(client, at("10:02", "Pay the rent.", first, "And the gas.")))
        made = await client.post("/v1/sessions/billing/fork", json={"name": "try", "at": 1})
        assert (made.status_code, made.json()["turns"]) == (201, 1)
        body = {"messages": at("10:02", "Pay the rent.", first, "And me."), "max_tokens": 8}
        went = (await client.post("/s/try/v1/chat/completions", json=body)).json()["sessiond"]
        assert (went["session"], went["turn"], went["miss"]) == ("try", 2, None)
        new = len("\nuser\nAnd me.\nassistant\n") + len(("end", "start", "end", "start"))
        assert went["prefilled_tokens"] <= new + 1
        assert (await client.get("/v1/sessions/billing")).json()["turns"] == 2
        assert (await client.delete("/v1/sessions/billing")).status_code == 204
        again = (await client.post("/s/try/v1/chat/completions", json=body)).json()["sessiond"]
        assert (again["turn"], again["prefilled_tokens"], again["miss"]) == (3, 1, None)
        assert (await client.get("/v1/sessions/try")).json()["turns"] == 3


async def test_a_fork_that_cannot_be_is_refused_by_the_daemon_too(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, client):
        await client.post("/v1/sessions", json={"name": "empty"})
        void = await client.post("/v1/sessions/empty/fork", json={"name": "new"})
        assert (void.status_code, void.json()["error"]["code"]) == (409, "conflict")
        reply(await said(client, at("10:02", "Pay the rent.")))
        for name in ("empty", "billing"):
            taken = await client.post("/v1/sessions/billing/fork", json={"name": name})
            assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
        gone = await client.post("/v1/sessions/billing/fork", json={"name": "new", "at": 9})
        assert (gone.status_code, gone.json()["error"]["param"]) == (404, "at")
        nobody = await client.post("/v1/sessions/nobody/fork", json={"name": "new"})
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "session_not_found")
        listed = (await client.get("/v1/sessions")).json()["sessions"]
        assert {session["name"] for session in listed} == {"empty", "billing"}


async def test_the_sentence_of_a_long_name_stays_short(tmp_path: Path) -> None:
    name = "x" * 200
    async with talking(tmp_path) as (_, client):
        body = {"messages": at("10:02", "Pay the rent."), "max_tokens": 8}
        path = f"/s/{name}/v1/chat/completions"
        first = reply(await client.post(path, json=body))
        body["messages"] = at("10:03", "Pay the rent.", first, "And the gas.")
        error = (await client.post(path, json=body)).json()["error"]
        assert error["code"] == "context_edit_rejected"
        assert len(error["message"]) <= 250
        assert "Start a new chat" in error["message"]
        assert "sessiond set" not in error["message"] or "--policy fork" in error["message"]
        assert error["session"] == name
