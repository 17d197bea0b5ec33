"""Anthropic's API on a whole daemon with a fake engine, beside OpenAI's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import serving
from tests.rig import Rig
from tests.sessions.kinds import rig_of

FRONT = "You are terse. " * 20
LIMIT = 1200


@asynccontextmanager
async def daemon(rig: Rig) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with (
        rig.daemon() as running,
        serving(running.lifecycle) as url,
        httpx.AsyncClient(base_url=f"{url}/s/talk", timeout=30) as client,
    ):
        yield client


async def ask(client: httpx.AsyncClient, api: str, said: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply as a message, and what was told of the turn."""
    options = {"max_tokens": 12, "temperature": 0}
    if api == "openai":
        front = {"role": "system", "content": FRONT}
        answer = await client.post(
            "/v1/chat/completions", json={"messages": [front, *said], **options}
        )
        assert answer.status_code == 200, answer.text
        return {**answer.json()["choices"][0]["message"], "told": answer.json()["sessiond"]}
    system = [{"type": "text", "text": FRONT, "cache_control": {"type": "ephemeral"}}]
    blocks = [{"role": m["role"], "content": [_block(m["content"])]} for m in said]
    answer = await client.post(
        "/v1/messages", json={"system": system, "messages": blocks, **options}
    )
    assert answer.status_code == 200, answer.text
    body = answer.json()
    text = "".join(block["text"] for block in body["content"])
    return {"role": "assistant", "content": text, "told": body["sessiond"], "usage": body["usage"]}


def _block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
@pytest.mark.parametrize("first", ["openai", "anthropic"])
async def test_a_conversation_goes_on_through_another_api(
    tmp_path: Path, kind: str, first: str
) -> None:
    """Result: the prefix is kept at every change of the API, and only what is new is evaluated."""
    second = "anthropic" if first == "openai" else "openai"
    async with daemon(rig_of(kind, tmp_path)) as client:
        said: list[dict[str, Any]] = []
        for turn, api in enumerate([first, second, first, second], start=1):
            said.append({"role": "user", "content": f"question {turn}"})
            reply = await ask(client, api, said)
            told = reply["told"]
            assert (told["turn"], told["miss"]) == (turn, None)
            if turn > 1:
                assert told["source"] == "resident"
                assert told["prefilled_tokens"] <= 80
            if "usage" in reply:
                usage = reply["usage"]
                assert usage["cache_read_input_tokens"] == told["cached_tokens"]
                assert usage["cache_creation_input_tokens"] == told["prefilled_tokens"]
            said.append({"role": "assistant", "content": reply["content"]})


async def test_tokens_are_counted_as_they_will_be_evaluated(tmp_path: Path) -> None:
    body = {"system": FRONT, "messages": [{"role": "user", "content": "hi"}]}
    async with daemon(rig_of("attention", tmp_path)) as client:
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()
        assert (await client.get("/v1/sessions")).json() == {"sessions": []}
        told = (await client.post("/v1/messages", json={**body, "max_tokens": 1})).json()
    assert counted == {"input_tokens": told["usage"]["input_tokens"]}
    assert told["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_refused_in_the_words_agents_know(
    tmp_path: Path, stream: bool
) -> None:
    rig = rig_of("attention", tmp_path, n_ctx=LIMIT)
    body = {"messages": [{"role": "user", "content": "x" * (LIMIT + 1)}]}
    async with daemon(rig) as client:
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()
        answer = await client.post("/v1/messages", json={**body, "stream": stream})
    error = answer.json()["error"]
    tokens = counted["input_tokens"]
    assert answer.status_code == 400
    assert error["message"] == f"prompt is too long: {tokens} tokens > {LIMIT} maximum"
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("marked", [True, False])
async def test_a_marked_message_is_a_place_to_come_back_to(tmp_path: Path, marked: bool) -> None:
    """A long history comes at once, and another one goes on from its second question."""
    words = [f"Question {number}. " + "What else is there? " * 20 for number in range(8)]
    history = [
        message
        for number, text in enumerate(words)
        for message in (
            {"role": "user", "content": [{"type": "text", "text": text}]},
            {"role": "assistant", "content": f"Answer {number}."},
        )
    ]
    if marked:
        history[2]["content"][0]["cache_control"] = {"type": "ephemeral"}  # type: ignore[index]
    body = {"system": FRONT, "max_tokens": 4}
    async with daemon(rig_of("hybrid", tmp_path, n_ctx=1 << 14)) as client:
        first = await client.post("/v1/messages", json={**body, "messages": history[:-1]})
        assert first.status_code == 200, first.text
        other = [*history[:3], {"role": "assistant", "content": "Not at all."}, history[4]]
        report = (await client.post("/v1/messages", json={**body, "messages": other})).json()
    evaluated, beyond = report["sessiond"]["prefilled_tokens"], len(words[2]) + 100
    assert (evaluated <= beyond) is marked
