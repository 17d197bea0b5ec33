"""What the clients make of refusals, and when they try again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anthropic
import anyio
import openai
import pytest

from sessiond.engine.context import Context, Model
from sessiond.sessions.limits import Limits
from tests.api.live.recorder import Json
from tests.api.live.refusal import error_of, refused
from tests.api.live.world import World, rig_of, template, world_of
from tests.rig.rig import fake
from tests.sessions.kinds import MEMORIES

LIMIT = 900
TOOL: Json = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
FLAT: Json = {"type": "function", "strict": False, **TOOL["function"]}
ANTHROPICS: Json = {"name": "ls", "input_schema": {"type": "object"}}
Ask = Callable[..., Awaitable[Any]]
Waits = Callable[[Callable[[], Awaitable[None]]], list[float]]


def chat(world: World, said: str = "Hi", **more: Any) -> Awaitable[Any]:
    messages: Any = more.pop("messages", [{"role": "user", "content": said}])
    return world.openai.chat.completions.create(**{"model": "m", "messages": messages, **more})


def response(world: World, said: str = "Hi", **more: Any) -> Awaitable[Any]:
    return world.openai.responses.create(**{"model": "m", "input": said, **more})


def message(world: World, said: str = "Hi", **more: Any) -> Awaitable[Any]:
    messages: Any = more.pop("messages", [{"role": "user", "content": said}])
    asked = {"model": "m", "max_tokens": 9, "messages": messages, **more}
    return world.claude.messages.create(**asked)


EACH: list[Ask] = [chat, response, message]
each_api = pytest.mark.parametrize("ask", EACH)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    rig = rig_of("attention", tmp_path, template("chatml.jinja"), limit=LIMIT)
    async with world_of(rig, retries=2) as world:
        yield world


NAMELESS: Json = {"type": "function", "function": {}}
RM = {"type": "tool", "name": "rm"}
WRONG: list[tuple[Ask, Json, str]] = [
    (chat, {"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    (chat, {"tools": [TOOL], "tool_choice": {"function": {"name": "rm"}}}, "tool_choice"),
    (chat, {"tool_choice": "required"}, "tool_choice"),
    (chat, {"tools": [TOOL, NAMELESS], "tool_choice": "required"}, "tools[1]"),
    (chat, {"tools": "ls"}, "tools"),
    (chat, {"messages": [{"role": "nobody", "content": "Hi"}]}, "messages[0].role"),
    (chat, {"response_format": {"type": "xml"}}, "response_format.type"),
    (response, {"tools": [FLAT], "tool_choice": "sometimes"}, "tool_choice"),
    (
        response,
        {"tools": [FLAT], "tool_choice": {"type": "function", "name": "rm"}},
        "tool_choice",
    ),
    (response, {"tool_choice": "required"}, "tool_choice"),
    (response, {"tools": [FLAT, {"type": "function"}]}, "tools[1].name"),
    (response, {"input": [{"role": "nobody", "content": "Hi"}]}, "input[0].role"),
    (response, {"text": {"format": {"type": "xml"}}}, "text.format.type"),
    (message, {"tools": [ANTHROPICS], "tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
    (
        message,
        {"tools": [ANTHROPICS], "tool_choice": {"type": "tool", "name": "rm"}},
        "tool_choice",
    ),
    (message, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (message, {"tools": [ANTHROPICS, {"input_schema": {}}]}, "tools[1].name"),
    (message, {"messages": [{"role": "nobody", "content": "Hi"}]}, "messages[0].role"),
    (message, {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
]


async def test_what_is_wrong_is_named_to_the_client(world: World) -> None:
    """Result: one request each; the client's own error has what is wrong, and where."""
    for number, (ask, fields, param) in enumerate(WRONG):
        body = await refused(world, ask(world, **fields, stream=number % 2 == 0))
        assert (body["type"], body["param"]) == ("invalid_request_error", param), fields
        assert body["message"] and body["code"]
    assert [exchange.status for exchange in world.wire.exchanges] == [400] * len(WRONG)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_told_in_the_words_agents_know(
    world: World, stream: bool
) -> None:
    """Result: Claude Code's words and OpenAI's code; no second try."""
    long = "word " * 200
    for ask in (chat, response):
        body = await refused(world, ask(world, long, stream=stream))
        assert body["code"] == "context_length_exceeded"
        assert body["n_ctx"] == LIMIT < body["n_prompt_tokens"]
    told = await refused(world, message(world, long, stream=stream))
    assert told["message"].startswith("prompt is too long: ")
    assert told["message"].endswith(f" tokens > {LIMIT} maximum")
    assert len(world.wire.exchanges) == 3


@pytest.mark.parametrize("stream", [False, True])
@each_api
async def test_a_rewrite_is_refused_once_and_the_client_does_not_insist(
    tmp_path: Path, ask: Ask, stream: bool
) -> None:
    """A session of its own by its path; a clock in the front moves on."""
    rig = rig_of("attention", tmp_path, template("chatml.jinja"))
    async with world_of(rig, session="mine", retries=2) as world:
        said: list[Json] = [{"role": "user", "content": "Hi"}]
        world.will_say("Hello.")
        await ask(world, **at(ask, "10:02", said))
        said += [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Now?"}]
        first = await world.daemon.lifecycle.transcript("mine")
        requests = len(world.wire.exchanges)
        body = await refused(world, ask(world, **at(ask, "10:03", said), stream=stream))
        assert (body["code"], body["cause"]) == ("context_edit_rejected", "clock")
        assert (body["session"], body["type"]) == ("mine", "invalid_request_error")
        assert len(world.wire.exchanges) == requests + 1
        assert await world.daemon.lifecycle.transcript("mine") == first


def at(ask: Ask, clock: str, said: list[Json]) -> Json:
    """A front with a clock, in the words of the API."""
    front = f"It is {clock} now. " + "Be terse. " * 20
    if ask is message:
        return {"system": front, "messages": said}
    if ask is response:
        return {"instructions": front, "input": said, "max_output_tokens": 9}
    return {"messages": [{"role": "system", "content": front}, *said], "max_tokens": 9}


@pytest.fixture
def waits(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[], Awaitable[None]]], list[float]]:
    """The client's next wait before it tries again is what is given, and takes no time."""

    def instead(of: Callable[[], Awaitable[None]]) -> list[float]:
        waited: list[float] = []

        async def sleep(seconds: float) -> None:
            waited.append(seconds)
            await of()

        monkeypatch.setattr(anyio, "sleep", sleep)
        return waited

    return instead


@each_api
async def test_a_client_comes_back_when_the_queue_was_full(
    tmp_path: Path, ask: Ask, waits: Waits
) -> None:
    """Nobody may wait, and the only line is busy. Result: 429, a wait as told, an answer."""
    rig = rig_of("attention", tmp_path, template("chatml.jinja"), limits=Limits(queue=0, drain=5))
    rig.open_engine = fake(MEMORIES["attention"], lines=1)
    async with world_of(rig, retries=2) as world:
        busy = await world.daemon.open("busy", "go on", max_tokens=1_000_000, ignore_eos=True)
        await anext(busy.events)

        async def left() -> None:
            await busy.events.aclose()
            while world.daemon.lifecycle._floor.running:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

        waited = waits(left)
        await ask(world, extra_body={"max_tokens": 4})
        assert [(one.status, one.retry) for one in world.wire.exchanges] == [
            (429, "3"),
            (200, None),
        ]
        assert waited == [3.0]


async def test_the_last_refusal_is_the_clients_own_kind_of_error(tmp_path: Path) -> None:
    rig = rig_of("attention", tmp_path, template("chatml.jinja"), limits=Limits(queue=0, drain=5))
    rig.open_engine = fake(MEMORIES["attention"], lines=1)
    async with world_of(rig) as world:
        busy = await world.daemon.open("busy", "go on", max_tokens=1_000_000, ignore_eos=True)
        await anext(busy.events)
        for ask in EACH:
            with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as refused:
                await ask(world, stream=True)
            assert error_of(refused.value)["type"] == "rate_limit_error"
        await busy.events.aclose()


@each_api
async def test_a_client_comes_back_when_the_model_was_loading(
    tmp_path: Path, ask: Ask, waits: Waits
) -> None:
    """The model takes longer than requests are held. Result: 503, a wait as told, an answer."""
    may_load = threading.Event()
    rig = rig_of(
        "attention", tmp_path, template("chatml.jinja"), limits=Limits(load_wait=0.01, drain=5)
    )
    open_ = rig.open_engine

    def slowly() -> tuple[Model, Context]:
        may_load.wait(20)
        return open_()

    rig.open_engine = slowly
    async with world_of(rig, retries=2, loaded=False) as world:

        async def loaded() -> None:
            may_load.set()
            await world.daemon.lifecycle.loaded()

        waited = waits(loaded)
        await ask(world, extra_body={"max_tokens": 4})
        assert [(one.status, one.retry) for one in world.wire.exchanges] == [
            (503, "5"),
            (200, None),
        ]
        assert waited == [5.0]
