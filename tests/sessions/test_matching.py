"""Whatever a client makes of a history, what was said is found again; and nothing else is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.fake import CHATML, FakeModel
from sessiond.engine.memory import Tokens, as_tokens
from sessiond.sessions.composition import Composer
from sessiond.sessions.echo import seen_until, without_reasoning
from sessiond.sessions.transcript import (
    Chat,
    Message,
    as_seen,
    canonical_arguments,
    digest,
    read_chat,
    read_message,
    read_tool,
    tools_digest,
)
from sessiond.sessions.tree import SessionTree
from tests.rig import Rig
from tests.rig.rig import fake
from tests.sessions.conftest import MEMORY
from tests.sessions.kinds import KINDS, MEMORIES, chat, rig_of
from tests.sessions.matching import (
    Conversation,
    Fields,
    Reply,
    conversations,
    meant_otherwise,
    replies,
    retold,
)
from tests.sessions.talk import checked
from tests.sessions.turns import make_turn, user

NOW = datetime(2025, 11, 29, 10, 2, tzinfo=UTC)
each_kind = pytest.mark.parametrize("kind", KINDS)


def as_sent(message: Message) -> Fields:
    """A canonical message as a client could send it."""
    fields = asdict(message)
    calls = [
        {"id": call["id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in fields["tool_calls"]
    ]
    return fields | {"tool_calls": calls, "reasoning_content": message.reasoning}


@given(conversations(), st.data())
def test_the_canonical_form_of_what_is_canonical_is_itself(
    conversation: Conversation, data: st.DataObject
) -> None:
    told, tools = data.draw(retold(conversation))
    for message in map(read_message, told):
        assert read_message(as_sent(message)) == message
        seen = as_seen(message)
        assert as_seen(seen) == seen
        assert digest(seen) == digest(message)
    for tool in map(read_tool, tools):
        assert read_tool(json.loads(tool)) == tool
        assert canonical_arguments(canonical_arguments(tool)) == canonical_arguments(tool)


@given(conversations(), st.data())
def test_what_means_the_same_is_the_same_line(
    conversation: Conversation, data: st.DataObject
) -> None:
    told, tools = data.draw(retold(conversation))
    request = read_chat([*told, {"role": "user", "content": "next"}], tools)
    match = conversation.tree().match(request)
    assert (match.turn, match.matched_messages) == (len(conversation.exchanges), len(told))
    assert match.rest(request).messages == (Message("user", "next"),)  # type: ignore[union-attr]
    assert (match.begun, match.echo) == (len(told), None)


@given(conversations(), st.data())
@settings(max_examples=300)
def test_what_means_something_else_is_another_line_from_there_on(
    conversation: Conversation, data: st.DataObject
) -> None:
    kind, told, tools, index = data.draw(meant_otherwise(conversation))
    tree = conversation.tree()
    request = read_chat([*told, {"role": "user", "content": "next"}], tools)
    match = tree.match(request)
    assert match.matched_messages <= index, kind
    assert match.begun <= index
    assert tree.match(read_chat(conversation.plain(), list(conversation.tools))).turn == len(tree)


@given(conversations())
def test_tools_differ_where_a_definition_does(conversation: Conversation) -> None:
    tools = [read_tool(tool) for tool in conversation.tools]
    for index, tool in enumerate(tools):
        fields = json.loads(tool)
        fields["function"]["parameters"]["properties"]["e"] = 1
        changed = [*tools[:index], read_tool(fields), *tools[index + 1 :]]
        assert tools_digest(changed) != tools_digest(tools)
        assert tools_digest(tools[:index] + tools[index + 1 :]) != tools_digest(tools)


def test_a_provider_s_line_takes_nothing_with_it() -> None:
    """Its part ends without a line break, and the words of the next part count."""
    billing = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}

    def system(text: str) -> Message:
        return read_message(
            {"role": "system", "content": [billing, {"type": "text", "text": text}]}
        )

    assert system("Be brief.") == Message("system", "Be brief.")
    assert digest(system("Be brief.")) != digest(system("Be long."))
    told = read_message({"role": "user", "content": billing["text"]})
    assert told.content == billing["text"]


@given(replies(), st.data())
def test_every_beginning_of_a_reply_is_an_echo_of_it(reply: Reply, data: st.DataObject) -> None:
    raw, text = reply.raw, without_reasoning(reply.raw)
    cut = data.draw(st.integers(0, len(raw)))
    if seen := raw[:cut].strip():
        assert seen_until(raw, raw[:cut]) == raw.index(seen) + len(seen)
    cut = data.draw(st.integers(0, len(text)))
    if seen := text[:cut].strip():
        assert seen_until(raw, text[:cut]) == len(raw) - len(text) + text.index(seen) + len(seen)
        assert seen_until(raw, f"x{text[:cut]}") is None
        assert seen_until(raw, f"{seen}\N{SNOWMAN}") is None
    assert seen_until(raw, " \n") is None


class Pairs(FakeModel):
    """Two bytes are one token where they stand together; special ones are their own."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        single = super().tokenize(text, add_special=add_special, parse_special=parse_special)
        return as_tokens(list(_paired(single.tolist())))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token >= 1 << 16:
            return bytes([token >> 8 & 255, token & 255])
        return super().piece(token, special=special)


def _paired(single: list[int]) -> Iterator[int]:
    index = 0
    while index < len(single):
        pair = single[index : index + 2]
        if len(pair) == 2 and max(pair) < 256:
            yield 1 << 16 | pair[0] << 8 | pair[1]
            index += 2
        else:
            yield pair[0]
            index += 1


PAIRS = Pairs()
RENDERER = TemplateRenderer(PAIRS, ChatTemplate(CHATML))


def spelled(tokens: Tokens) -> str:
    return b"".join(PAIRS.piece(int(token), special=True) for token in tokens).decode()


@given(replies(), st.booleans(), st.data())
def test_a_reply_echoed_in_part_keeps_its_whole_tokens(
    reply: Reply, with_reasoning: bool, data: st.DataObject
) -> None:
    composer, tree = Composer(RENDERER, "vocabulary", NOW), SessionTree()
    asked = Chat((Message("system", "be brief"), user("go on")))
    prompt = RENDERER.full(asked, NOW)
    tokens = PAIRS.tokenize(reply.raw, add_special=False, parse_special=False)
    tree.add(make_turn(1, None, asked, reply.raw, prompt=prompt.tolist(), replied=tokens.tolist()))
    visible_from = 0 if with_reasoning else len(reply.raw) - len(without_reasoning(reply.raw))
    cut = data.draw(st.integers(visible_from, len(reply.raw)))
    echo = reply.raw[visible_from:cut]
    if not echo.strip() or digest(Message("assistant", echo)) == digest(
        Message("assistant", reply.raw)
    ):
        return
    request = replace(asked, messages=(*asked.messages, Message("assistant", echo), user("why?")))
    composed = composer.compose(request, tree)
    known = tree.path_tokens(1)
    seen = reply.raw[: visible_from + len(echo.rstrip())]
    whole = len(prompt) + len(seen.encode()) // 2
    assert np.array_equal(composed.prompt[:whole], known[:whole])
    assert spelled(composed.prompt) == (
        spelled(prompt)
        + seen
        + "<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
    )


@each_kind
async def test_a_reply_that_was_seen_in_part_goes_on_as_if_it_had_ended_there(
    state_dir: Path, kind: str
) -> None:
    asked = chat("Tell me.")
    rig = rig_of(kind, state_dir, replies=["abcdefghijklmnop"])
    async with rig.daemon() as daemon:
        first = (await daemon.say("talk", asked, max_tokens=40)).report
        told = [*asked, {"role": "assistant", "content": "abcdefgh"}]
        further = [*told, {"role": "user", "content": "And?"}]
        reply = await checked(daemon, kind, "talk", further)
        seen = first.prompt_tokens + 8
        anywhere = not MEMORIES[kind].needs_snapshot
        assert (
            (seen if anywhere else first.prompt_tokens - 1)
            <= reply.report.cached_tokens
            <= seen + 1
        )
        last = [*further, {"role": "assistant", "content": reply.text}]
        again = await checked(daemon, kind, "talk", [*last, {"role": "user", "content": "So?"}])
        standing = reply.report.prompt_tokens + reply.report.completion_tokens
        assert standing - 1 <= again.report.cached_tokens <= standing


@settings(max_examples=4)
@given(conversations(least=3), st.data())
@each_kind
def test_an_append_never_loses_a_token(
    kind: str, conversation: Conversation, data: st.DataObject
) -> None:
    """Of a conversation that the client tells otherwise every turn."""

    async def talk(directory: Path) -> None:
        standing, said = 0, [exchange.reply.raw for exchange in conversation.exchanges]
        source = (Path(__file__).parent.parent / "templates" / "qwen.jinja").read_text()
        rig = Rig(directory, fake(MEMORIES[kind], replies=said), template=source)
        async with rig.daemon(kill=True) as daemon:
            for number, exchange in enumerate(conversation.exchanges):
                before = replace(conversation, exchanges=conversation.exchanges[:number])
                told, tools = data.draw(retold(before))
                reply = await daemon.say(
                    "talk", [*told, *exchange.asked], tools=tools, max_tokens=None
                )
                assert reply.text == exchange.reply.raw
                if number:
                    assert standing - 1 <= reply.report.cached_tokens <= standing
                    assert reply.report.miss is None
                assert reply.report.turn == number + 1
                standing = reply.report.prompt_tokens + reply.report.completion_tokens

    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        asyncio.run(talk(Path(directory)))
