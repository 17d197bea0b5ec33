"""Responses that go on from responses, with all of a daemon behind them but the model."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from sessiond.sessions import turn_task
from sessiond.sessions.turn import TurnSummary
from tests.api.serving import serving
from tests.rig import Daemon
from tests.sessions.kinds import rig_of

FRONT = "You are terse. " * 5
CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "name": "ls", "parameters": {"type": "object"}}]


@asynccontextmanager
async def talking(
    directory: Path, *, kill: bool = False, path: str = "", **options: Any
) -> AsyncGenerator[tuple[Daemon, openai.AsyncOpenAI], None]:
    async with (
        rig_of("attention", directory, **options).daemon(kill=kill) as daemon,
        serving(daemon.lifecycle) as url,
        openai.AsyncOpenAI(base_url=f"{url}{path}/v1", api_key="x", max_retries=0) as sdk,
    ):
        yield daemon, sdk


async def ask(sdk: openai.AsyncOpenAI, said: Any, **more: Any) -> Response:
    asked = {"model": "m", "max_output_tokens": 8, "temperature": 0, "instructions": FRONT, **more}
    reply: Response = await sdk.responses.create(input=said, **asked)
    return reply


def told(reply: Response) -> dict[str, Any]:
    extra = reply.model_extra or {}
    block: dict[str, Any] = extra["sessiond"]
    return block


async def turns_of(daemon: Daemon, reply: Response) -> list[TurnSummary]:
    return await daemon.lifecycle.turns(told(reply)["session"])


async def test_a_chain_is_one_line_and_evaluates_what_is_new(tmp_path: Path) -> None:
    async with talking(tmp_path) as (daemon, sdk):
        first = await ask(sdk, "One?")
        second = await ask(sdk, "Two?", previous_response_id=first.id)
        third = await ask(sdk, "Three?", previous_response_id=second.id)
        assert [told(reply)["session"] for reply in (second, third)] == [told(first)["session"]] * 2
        turns = await turns_of(daemon, third)
        assert [turn.parent for turn in turns] == [None, 1, 2]
        assert [turn.role_of_new for turn in turns[1:]] == [("user",), ("user",)]
        assert told(third)["prefilled_tokens"] < 60
        assert third.previous_response_id == second.id


async def test_any_earlier_response_can_be_gone_on_from(tmp_path: Path) -> None:
    """Result: the second is another child of the first turn; nothing of the other line is in it."""
    async with talking(tmp_path) as (daemon, sdk):
        first = await ask(sdk, "One?")
        await ask(sdk, "Two?", previous_response_id=first.id)
        other = await ask(sdk, "Or?", previous_response_id=first.id)
        assert [turn.parent for turn in await turns_of(daemon, other)] == [None, 1, 1]
        stored = await daemon.lifecycle.response(other.id)
        assert [m.content for m in stored.asked if m.role == "user"] == ["One?", "Or?"]
        assert told(other)["miss"] is None


async def test_a_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with talking(tmp_path, kill=True) as (_, sdk):
        first = await ask(sdk, "One?")
        second = await ask(sdk, "Two?", previous_response_id=first.id)
    async with talking(tmp_path) as (daemon, sdk):
        assert (await sdk.responses.retrieve(second.id)).output_text == second.output_text
        third = await ask(sdk, "Or?", previous_response_id=first.id)
        assert [turn.parent for turn in await turns_of(daemon, third)] == [None, 1, 1]


async def test_a_chain_is_the_same_as_the_whole_history(tmp_path: Path) -> None:
    """The same talk through chat, by name. Result: the same line, nothing evaluated twice."""
    async with talking(tmp_path) as (daemon, sdk):
        headers = {"X-Session-Id": "talk"}
        first = await ask(sdk, "One?", extra_headers=headers)
        second = await ask(sdk, "Two?", previous_response_id=first.id, extra_headers=headers)
        messages: Any = [
            {"role": "system", "content": FRONT},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "Two?"},
            {"role": "assistant", "content": second.output_text},
            {"role": "user", "content": "Three?"},
        ]
        await sdk.chat.completions.create(
            model="m", messages=messages, max_tokens=8, extra_headers=headers
        )
        turns = await daemon.lifecycle.turns("talk")
        assert [turn.parent for turn in turns] == [None, 1, 2]
        items = [
            {"role": "user", "content": "One?"},
            *(item.to_dict() for item in first.output),
            {"role": "user", "content": "Two?"},
            *(item.to_dict() for item in second.output),
            {"role": "user", "content": "Three?"},
        ]
        again = await ask(sdk, items, extra_headers=headers)
        assert told(again)["prefilled_tokens"] == 1
        assert [t.parent for t in await daemon.lifecycle.turns("talk")] == [None, 1, 2, 2]


async def test_instructions_are_not_inherited(tmp_path: Path) -> None:
    """As OpenAI has it. Result: without them, another line without a system message."""
    async with talking(tmp_path) as (daemon, sdk):
        first = await ask(sdk, "One?")
        second = await ask(sdk, "Two?", previous_response_id=first.id, instructions=None)
        stored = await daemon.lifecycle.response(second.id)
        assert [message.role for message in stored.asked] == ["user", "assistant", "user"]
        third = await ask(sdk, "Three?", previous_response_id=second.id, instructions="New.")
        stored = await daemon.lifecycle.response(third.id)
        assert stored.asked[0].content == "New."


async def test_a_developer_message_of_the_input_is_part_of_the_conversation(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path) as (daemon, sdk):
        said = [{"role": "developer", "content": FRONT}, {"role": "user", "content": "One?"}]
        first = await ask(sdk, said, instructions=None)
        second = await ask(sdk, "Two?", previous_response_id=first.id, instructions=None)
        assert [turn.parent for turn in await turns_of(daemon, second)] == [None, 1]


async def test_a_call_and_its_result(tmp_path: Path) -> None:
    """The model calls; the client sends only the result. Result: one line, and the call in it."""
    async with talking(tmp_path, replies=[CALL, "A file."]) as (daemon, sdk):
        first = await ask(sdk, "What is there?", tools=TOOLS, max_output_tokens=100)
        ids = [item.call_id for item in first.output if item.type == "function_call"] or ["c1"]
        result = {"type": "function_call_output", "call_id": ids[0], "output": "a.txt"}
        second = await ask(sdk, [result], tools=TOOLS, previous_response_id=first.id)
        assert second.output_text == "A file."
        turns = await turns_of(daemon, second)
        assert [turn.parent for turn in turns] == [None, 1]
        assert turns[1].role_of_new == ("tool",)
        stored = await daemon.lifecycle.response(second.id)
        call = stored.asked[2].tool_calls[0]
        assert (call.id, call.name, call.arguments) == (ids[0], "ls", '{"path":"/"}')


THINKING = "<think>\nhm\n</think>\n\n"


async def test_reasoning_is_kept_though_no_client_sends_it_back(tmp_path: Path) -> None:
    """Result: one line, whether a response is gone on from or its items come back without it."""
    async with talking(tmp_path, replies=[f"{THINKING}Eins.", f"{THINKING}Zwei."]) as (daemon, sdk):
        headers = {"X-Session-Id": "talk"}
        first = await ask(sdk, "One?", extra_headers=headers, max_output_tokens=100)
        second = await ask(
            sdk, "Two?", extra_headers=headers, max_output_tokens=100, previous_response_id=first.id
        )
        said = {"type": "message", "role": "assistant", "content": "Zwei."}
        encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
        items = [{"role": "user", "content": "One?"}, encrypted, {**said, "content": "Eins."}]
        items += [{"role": "user", "content": "Two?"}, encrypted, said]
        await ask(sdk, [*items, {"role": "user", "content": "3?"}], extra_headers=headers)
        assert [turn.parent for turn in await daemon.lifecycle.turns("talk")] == [None, 1, 2]
        assert second.output_text.endswith("Zwei.")


async def test_a_streamed_response_is_stored_before_its_last_event(tmp_path: Path) -> None:
    async with talking(tmp_path) as (daemon, sdk):
        stream: Any = await sdk.responses.create(
            model="m", input="One?", stream=True, max_output_tokens=8, temperature=0
        )
        async for event in stream:
            if event.type == "response.completed" or event.type == "response.incomplete":
                stored = await daemon.lifecycle.response(event.response.id)
        assert stored.said.content == event.response.output_text.strip()
        got = await sdk.responses.retrieve(stored.id)
        assert got.output == event.response.output


async def test_items_are_referred_to_by_their_ids(tmp_path: Path) -> None:
    async with talking(tmp_path) as (daemon, sdk):
        headers = {"X-Session-Id": "talk"}
        first = await ask(sdk, "One?", extra_headers=headers)
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        said = [{"role": "user", "content": "One?"}, *references, {"role": "user", "content": "2?"}]
        await ask(sdk, said, extra_headers=headers)
        assert [turn.parent for turn in await daemon.lifecycle.turns("talk")] == [None, 1]
        listed = await sdk.responses.input_items.list(first.id)
        again = [{"type": "item_reference", "id": listed.data[0].id}]
        await ask(sdk, again, extra_headers=headers, max_output_tokens=9)
        assert [turn.parent for turn in await daemon.lifecycle.turns("talk")] == [None, 1, None]


async def test_a_response_is_retrieved_as_it_was_given(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, sdk):
        for more in (
            {},
            {"tools": TOOLS, "metadata": {"a": "b"}, "reasoning": {"summary": "auto"}},
        ):
            reply = await ask(sdk, "One?", user="eve", **more)
            got = (await sdk.responses.retrieve(reply.id)).to_dict()
            given = reply.to_dict()
            for block in ("timings", "sessiond"):
                given.pop(block)
                got.pop(block, None)
            assert got == given


async def test_the_input_of_a_response_is_listed(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, sdk):
        first = await ask(sdk, "One?")
        second = await ask(sdk, "Two?", previous_response_id=first.id)
        page = await sdk.responses.input_items.list(second.id, order="asc")
        texts = [item.content[0].text for item in page.data]  # type: ignore[union-attr]
        assert texts == ["One?", first.output_text, "Two?"]
        newest = await sdk.responses.input_items.list(second.id, limit=1)
        assert newest.has_more
        assert newest.data[0].content[0].text == "Two?"  # type: ignore[union-attr]
        everything = [item.id async for item in newest]
        assert everything == [item.id for item in reversed(page.data)]
        with pytest.raises(openai.BadRequestError):
            await sdk.responses.input_items.list(second.id, after="msg_1")


async def test_a_deleted_response_is_gone_and_the_talk_is_not(tmp_path: Path) -> None:
    async with talking(tmp_path) as (daemon, sdk):
        first = await ask(sdk, "One?")
        second = await ask(sdk, "Two?", previous_response_id=first.id)
        await sdk.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as refusal:
            await ask(sdk, "Or?", previous_response_id=first.id)
        assert refusal.value.code == "previous_response_not_found"
        third = await ask(sdk, "Three?", previous_response_id=second.id)
        assert [turn.parent for turn in await turns_of(daemon, third)] == [None, 1, 2]


async def test_a_key_does_not_bring_a_deleted_response_back(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, sdk):
        keyed = {"extra_headers": {"Idempotency-Key": "k"}}
        first = await ask(sdk, "One?", **keyed)
        assert (await ask(sdk, "One?", **keyed)).id == first.id
        await sdk.responses.delete(first.id)
        again = await ask(sdk, "One?", **keyed)
        assert again.id != first.id
        assert (await sdk.responses.retrieve(again.id)).id == again.id


async def test_what_is_not_stored_cannot_be_found(tmp_path: Path) -> None:
    async with talking(tmp_path) as (daemon, sdk):
        reply = await ask(sdk, "One?", store=False)
        assert not reply.store  # type: ignore[attr-defined]
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(reply.id)
        assert len(await turns_of(daemon, reply)) == 1


async def test_a_chain_stays_in_its_session(tmp_path: Path) -> None:
    """Weak signs of another session do not count, stronger ones do."""
    async with talking(tmp_path, path="/s/mine") as (_, sdk):
        first = await ask(sdk, "One?")
        assert told(first)["session"] == "mine"
    async with talking(tmp_path) as (_, sdk):
        weak = await ask(sdk, "Two?", previous_response_id=first.id, user="u", prompt_cache_key="k")
        assert told(weak)["session"] == "mine"
        strong = await ask(
            sdk, "Two?", previous_response_id=first.id, extra_headers={"X-Session-Id": "other"}
        )
        assert told(strong)["session"] == "other"


async def test_codex_keeps_its_session(tmp_path: Path) -> None:
    """store false, the whole history each time. Result: one session, one line."""
    ids = {"session-id": "t1", "thread-id": "t1"}
    async with talking(tmp_path) as (daemon, sdk):
        more = {"store": False, "prompt_cache_key": "t1", "extra_headers": ids}
        front = {"role": "developer", "content": [{"type": "input_text", "text": "Date: today"}]}
        said: list[Any] = [front, {"role": "user", "content": "One?"}]
        include = ["reasoning.encrypted_content"]
        for question in ("Two?", "Three?"):
            reply = await ask(sdk, said, include=include, tools=[{"type": "web_search"}], **more)
            said += [*(item.to_dict() for item in reply.output)]
            said.append({"role": "user", "content": question})
        turns = await daemon.lifecycle.turns("t1")
        assert [turn.parent for turn in turns] == [None, 1]


async def test_a_retry_takes_over_under_the_first_ones_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_task, "LINGER_S", 5.0)
    async with talking(tmp_path) as (_, sdk):
        headers = {"Idempotency-Key": "k"}
        first = await ask(sdk, "One?", extra_headers=headers)
        monkeypatch.setattr(time, "time", lambda now=time.time: now() + 2)
        again = await ask(sdk, "One?", extra_headers=headers)
        assert again.id == first.id
        assert (await sdk.responses.retrieve(again.id)).output_text == first.output_text
