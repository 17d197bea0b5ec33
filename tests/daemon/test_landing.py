"""Invariant 7 on real models: what every way to go on evaluates, and that landing changes no bit.

Gemma has a window of 32 here, so that the talk is longer than its window cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sessiond.engine.memory import Tokens, common_prefix
from sessiond.engine.sequence import SequenceView
from tests.daemon.conftest import RigMaker
from tests.daemon.replay import Journal, replayed, same_bits
from tests.daemon.stored_bytes import compared_blocks, exported_snapshots, kept_snapshots
from tests.rig import Daemon, Reply

KINDS = ["attention", "swa", "hybrid", "recurrent"]
SETTINGS: dict[str, Any] = {"narrow": True, "lines": 3, "n_ctx": 4096}
"""One thread: two wait for each other when the machine is busy."""
TASK = "Tell the old rule" + " the old rule" * 31
TEMPLATE_TOKENS = 5
"""Of ChatML and Gemma's template between two messages: the end of one, the start of the next."""
each_kind = pytest.mark.parametrize("kind", KINDS)
Messages = list[dict[str, Any]]


@dataclass
class Talk:
    """What one client re-sends, and the tokens that its turns stood on."""

    daemon: Daemon
    messages: Messages
    replies: list[Reply] = field(default_factory=list)

    async def ask(self, messages: Messages, session: str = "talk") -> tuple[Reply, Tokens]:
        """The reply, and the tokens of the prompt."""
        reply = await self.daemon.say(session, messages, max_tokens=3)
        tree = await self.daemon.lifecycle._register.tree(session)
        path = tree.path_tokens(reply.report.turn)
        return reply, path[: reply.report.prompt_tokens]

    async def say(self, text: str) -> Reply:
        asked = [*self.messages, user(text)]
        reply, _ = await self.ask(asked)
        self.messages = [*asked, {"role": "assistant", "content": reply.text}]
        self.replies.append(reply)
        return reply

    async def known(self, session: str = "talk") -> Tokens:
        """The tokens of the talk up to its last reply."""
        tree = await self.daemon.lifecycle._register.tree(session)
        return tree.path_tokens(self.replies[-1].report.turn)

    @property
    def standing(self) -> int:
        """How many tokens were evaluated when the last turn ended."""
        report = self.replies[-1].report
        return report.prompt_tokens + report.completion_tokens - (report.finish_reason == "length")

    def in_(self, daemon: Daemon) -> Talk:
        return Talk(daemon, list(self.messages), list(self.replies))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def talk_of(daemon: Daemon, front_words: int = 8) -> Talk:
    words = " ".join(f"rule{number}" for number in range(front_words))
    return Talk(daemon, [{"role": "system", "content": f"Follow {words}."}])


def front_of(tokens: int) -> Messages:
    """At least so many tokens: each of these words is one in either vocabulary."""
    return [{"role": "system", "content": "Follow" + " the old rule" * (tokens // 3 + 1)}]


async def identical(talk: Talk) -> tuple[int, int]:
    reply, _ = await talk.ask(talk.messages[:-1])
    assert reply.text == talk.replies[-1].text
    return reply.report.prefilled_tokens, 1


async def edit_of_the_last_message(talk: Talk) -> tuple[int, int]:
    known = await talk.known()
    reply, prompt = await talk.ask([*talk.messages[:-2], user("Quite another question.")])
    new = len(prompt) - common_prefix(prompt, known)
    return reply.report.prefilled_tokens, new + 1 + TEMPLATE_TOKENS


async def return_to_an_older_line(talk: Talk) -> tuple[int, int]:
    await talk.ask([*talk.messages[:-2], user("A way aside.")])
    before = talk.standing
    reply = await talk.say("Back again?")
    return reply.report.prefilled_tokens, reply.report.prompt_tokens - before


async def sub_agent_with_the_same_front(talk: Talk) -> tuple[int, int]:
    known = await talk.known()
    number = len(talk.replies)
    reply, prompt = await talk.ask([talk.messages[0], user(f"{number}. {TASK}")], f"agent-{number}")
    shared = common_prefix(prompt, known)
    assert 100 <= len(prompt) - shared <= 115
    return reply.report.prefilled_tokens, len(prompt) - shared + 1 + TEMPLATE_TOKENS


Case = Callable[[Talk], Awaitable[tuple[int, int]]]
CASES: list[Case] = [
    identical,
    edit_of_the_last_message,
    return_to_an_older_line,
    sub_agent_with_the_same_front,
]


FRONTS = [
    ("hybrid", 1200),
    ("recurrent", 1200),
    ("attention", 60),
    ("swa", 300),
    pytest.param("attention", 1200, marks=pytest.mark.proof_state),
    pytest.param("swa", 1200, marks=pytest.mark.proof_state),
]
"""What the larger models do behind 1,200 tokens takes long; 300 are more than the window cache."""


@pytest.mark.parametrize(("kind", "front"), FRONTS)
async def test_tokens_evaluated_warm_and_after_a_restart(
    rig_of: RigMaker, kind: str, front: int
) -> None:
    """
    1. Two turns behind a front of so many tokens; stop. Every case in a daemon of its own.
    2. Two turns more, which no other daemon knows of; every case again, in the same daemon.
    """
    rig = rig_of(kind, **SETTINGS)
    async with rig.daemon() as daemon:
        talk = Talk(daemon, front_of(front))
        await talk.say("Say one.")
        await talk.say("Say two.")
    for case in CASES:
        async with rig.daemon() as daemon:
            evaluated, allowed = await case(talk.in_(daemon))
        assert evaluated <= allowed, ("restarted", case.__name__)
    async with rig.daemon() as daemon:
        talk = talk.in_(daemon)
        await talk.say("Say three.")
        await talk.say("Say four.")
        for case in CASES:
            evaluated, allowed = await case(talk)
            assert evaluated <= allowed, ("warm", case.__name__)


@each_kind
@pytest.mark.parametrize("restart", [False, True], ids=["warm", "restarted"])
async def test_an_identical_request_is_a_replay(rig_of: RigMaker, kind: str, restart: bool) -> None:
    """
    1. Some turns, beyond the window cache; the last request again, twice.
    Result: one token is evaluated and the reply is the same. The logits have the bits of the first
    time, and so has the state that the reply leaves behind. Two exceptions: attention evaluated
    its last token as one of a chunk the first time, so there the second replay equals the first;
    a window lies in other cells, so there sums agree up to rounding.
    """
    rig = rig_of(kind, **SETTINGS)
    async with rig.daemon() as daemon:
        talk = Talk(daemon, front_of(270))
        for number in range(2):
            await talk.say(f"Say {number}.")
        if not restart:
            return await replays(talk, kind)
    async with rig.daemon() as daemon:
        await replays(talk.in_(daemon), kind)


async def replays(talk: Talk, kind: str) -> None:
    first = talk.replies[-1]
    again, _ = await talk.ask(talk.messages[:-1])
    once_more, _ = await talk.ask(talk.messages[:-1])
    for reply in (again, once_more):
        assert reply.report.prefilled_tokens == 1
        assert reply.text == first.text
    if kind != "swa":
        assert same_bits(once_more, first if kind != "attention" else again)
        assert same_bits(again, once_more)
    view = await standing_line(talk.daemon)
    if kind == "swa":
        assert view.window_start > 0, "longer than the window cache"
    elif kind != "attention":
        kept = await kept_snapshots(talk.daemon, view.tokens)
        exported = await exported_snapshots(talk.daemon, view)
        assert kept, "of the first time: what is there is not captured again"
        assert all(snapshot in exported for snapshot in kept)


async def standing_line(daemon: Daemon) -> SequenceView:
    """The line that was used last."""
    return max(await daemon.machine.engine.views(), key=lambda view: view.last_used)


@each_kind
async def test_a_landing_evaluates_as_if_there_were_none(rig_of: RigMaker, kind: str) -> None:
    """
    1. Three turns; the last message is edited, so that the turn lands before it.
    2. A fresh context evaluates the chunks that made the state it landed on, and then the turn's.
    Result: the same bits; of a window, the same tokens.
    """
    rig, journal, later = rig_of(kind, **SETTINGS), Journal(), Journal()
    async with rig.daemon() as daemon:
        journal.watch(daemon)
        talk = Talk(daemon, front_of(60))
        for number in range(3):
            await talk.say(f"Say {number}.")
        later.watch(daemon)
        edited, _ = await talk.ask([*talk.messages[:-2], user("Say something else.")])
    landed = edited.report.cached_tokens
    assert 0 < landed < talk.standing
    calls = [*chunks_of(journal, later, landed), *later.calls]
    rows = await replayed(rig_of(kind, **SETTINGS), calls)
    tail = rows[-len(edited.logits) :]
    assert [int(row.argmax()) for row in tail] == [int(row.argmax()) for row in edited.logits]
    if kind in ("hybrid", "recurrent"):
        assert all(np.array_equal(a, b) for a, b in zip(tail, edited.logits, strict=True))


def chunks_of(journal: Journal, later: Journal, landed: int) -> list[tuple[Tokens, int, bool]]:
    """Those before the edit that end at `landed` or before, the last one cut there."""
    earlier = journal.calls[: len(journal.calls) - len(later.calls)]
    return [
        (tokens[: landed - start], start, wanted)
        for tokens, start, wanted in earlier
        if start < landed
    ]


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
async def test_a_fork_exports_to_the_stored_blocks(rig_of: RigMaker, kind: str) -> None:
    """
    1. A talk is saved; another session forks its front, beyond the first block.
    Result: the block of the front, exported from the fork, is the stored one.
    """
    async with rig_of(kind, **SETTINGS).daemon() as daemon:
        talk = Talk(daemon, front_of(270))
        await talk.say("Say one.")
        await daemon.machine.saver.save_all()
        forked, _ = await talk.ask([talk.messages[0], user("Another task.")], "agent")
        assert forked.report.cached_tokens >= 270
        view = await standing_line(daemon)
        assert await compared_blocks(daemon, view, forked.report.cached_tokens) == 1
