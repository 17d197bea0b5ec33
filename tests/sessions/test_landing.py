"""Invariant 7 as a table: tokens evaluated for every way to go on, on every memory kind.

Each case runs in one daemon, and with a restart before the turn that counts. Replies are compared
with a control that evaluates everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sessiond.engine.memory import common_prefix
from tests.rig import Daemon, Reply
from tests.sessions.kinds import KINDS, MEMORIES, Messages, chat, control, prompt_of, rig_of
from tests.sessions.talk import Talk, checked

TEMPLATE_TOKENS = 24
"""Of the fake's ChatML between two messages: `<|im_end|>\\n<|im_start|>user\\n` in byte tokens."""
TURNS = 6
Case = Callable[[Daemon, Talk], Awaitable[tuple[Reply, int]]]


def new_tokens(asked: Messages, known: Messages) -> int:
    """Prompt tokens that no earlier prompt or reply of the talk begins with."""
    prompt = prompt_of(asked)
    return len(prompt) - common_prefix(prompt, prompt_of(known))


async def append(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    before = talk.standing
    reply = await talk.say(daemon, "And now?")
    return reply, reply.report.prompt_tokens - before


async def identical(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    return await checked(daemon, talk.kind, "talk", talk.messages[:-1]), 1


async def regenerate_an_earlier_turn(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    return await checked(daemon, talk.kind, "talk", talk.copy(TURNS - 1).messages[:-1]), 1


async def edit_the_last_message(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    asked = [*talk.messages[:-2], {"role": "user", "content": "Something quite different!"}]
    reply = await checked(daemon, talk.kind, "talk", asked)
    return reply, new_tokens(asked, talk.messages) + 1 + TEMPLATE_TOKENS


async def drop_the_last_exchange(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    asked = [*talk.messages[:-4], {"role": "user", "content": "Something quite different!"}]
    reply = await checked(daemon, talk.kind, "talk", asked)
    return reply, new_tokens(asked, talk.messages) + 1 + TEMPLATE_TOKENS


async def return_to_an_older_line(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    other = [*talk.messages[:-2], {"role": "user", "content": "A side way."}]
    await checked(daemon, talk.kind, "talk", other)
    before = talk.standing
    reply = await talk.say(daemon, "Back again?")
    return reply, reply.report.prompt_tokens - before


async def sub_agent_with_the_same_front(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    asked = chat("One hundred tokens of another task, " * 3)
    reply = await checked(daemon, talk.kind, "agent", asked)
    return reply, new_tokens(asked, talk.messages) + 1 + TEMPLATE_TOKENS


async def reply_echoed_without_its_reasoning(daemon: Daemon, talk: Talk) -> tuple[Reply, int]:
    asked = [dict(message) for message in talk.messages]
    asked[-1] = {**asked[-1], "reasoning_content": "never sent by the model"}
    asked.append({"role": "user", "content": "And now?"})
    before = talk.standing
    reply = await checked(daemon, talk.kind, "talk", asked)
    return reply, reply.report.prompt_tokens - before


CASES: list[Case] = [
    append,
    identical,
    regenerate_an_earlier_turn,
    edit_the_last_message,
    drop_the_last_exchange,
    return_to_an_older_line,
    sub_agent_with_the_same_front,
    reply_echoed_without_its_reasoning,
]
IN_MEMORY_ONLY = {regenerate_an_earlier_turn}
"""On disk are the front, and of each line the last four ends and the last two other boundaries."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("restart", [False, True], ids=["warm", "restarted"])
async def test_tokens_evaluated(state_dir: Path, kind: str, case: Case, restart: bool) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, TURNS)
        if not restart:
            reply, allowed = await case(daemon, talk)
    if restart:
        async with rig.daemon() as daemon:
            reply, allowed = await case(daemon, talk)
    if MEMORIES[kind].needs_snapshot and restart and case in IN_MEMORY_ONLY:
        allowed += longest_turn(talk)
    assert reply.report.prefilled_tokens <= allowed
    assert reply.report.cached_tokens > 0


def longest_turn(talk: Talk) -> int:
    """Distance to the boundary before: one exchange."""
    lengths = [reply.report.prompt_tokens for reply in talk.replies]
    return 2 * max(b - a for a, b in itertools.pairwise(lengths))


@pytest.mark.parametrize("kind", KINDS)
async def test_three_sub_agents_each_evaluate_their_own_tokens(state_dir: Path, kind: str) -> None:
    """A front of 1,200 tokens, three agents with 100 new tokens each, then the main talk again."""
    front = "You are terse. " * 80
    async with rig_of(kind, state_dir, lines=8).daemon() as daemon:
        talk = Talk(kind, messages=chat(front=front))
        await talk.turns(daemon, 1)
        for number in range(3):
            asked = chat(f"Task {number}: " + "x" * 90, front=front)
            reply = await checked(daemon, kind, f"agent-{number}", asked)
            new = new_tokens(asked, talk.messages)
            assert reply.report.prefilled_tokens <= new + 1 + TEMPLATE_TOKENS
        reply = await talk.say(daemon, "And?")
        assert reply.report.prefilled_tokens < 60


@pytest.mark.parametrize("kind", [k for k in KINDS if MEMORIES[k].needs_snapshot])
async def test_a_prefill_whose_client_leaves_keeps_its_progress(state_dir: Path, kind: str) -> None:
    asked = chat("word " * 400)
    async with rig_of(kind, state_dir).daemon() as daemon:
        opened = await daemon.open("talk", asked)
        async for event in opened.events:
            if getattr(event, "processed", 0) > 1000:
                break
        await opened.events.aclose()
        reply = await daemon.say("talk", asked)
        assert reply.text == control(kind, asked)
        assert reply.report.cached_tokens > 1000
