"""Real models, several sessions at once: each is answered as if it were alone in its daemon."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sessiond.engine.memory import Tokens
from tests.daemon.conftest import RigMaker
from tests.daemon.stored_bytes import (
    compared_blocks,
    exported_snapshots,
    same_state,
    stored_snapshots,
)
from tests.daemon.test_stress import evaluated_from_scratch
from tests.rig import Daemon, Reply, Rig

KINDS = ["hybrid", "swa"]
NAMES = ("north", "east", "south")
ROUNDS = 3
SESSIONS, TURNS = 8, 500
MOST_MESSAGES = 12
NEAR = 0.05
"""Of the largest logit: what rounding may make of two tokens that are as good."""
Messages = list[dict[str, Any]]


@dataclass
class Talk:
    """What one client says, the same every time. `known` tokens has the line after its turns."""

    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    known: int = 0

    async def turn(self, daemon: Daemon) -> Reply:
        if not self.messages:
            rules = " ".join(f"{self.name}{number}" for number in range(25))
            self.messages.append({"role": "system", "content": f"Follow {rules}."})
        said = f"{self.name.title()} turn {len(self.replies) + 1}."
        self.messages.append({"role": "user", "content": said})
        reply = await daemon.say(self.name, self.messages, max_tokens=4)
        self.messages.append({"role": "assistant", "content": reply.text})
        report = reply.report
        if self.replies:
            assert report.miss is None
            assert report.prefilled_tokens <= report.prompt_tokens - self.known + 1
        self.known = report.prompt_tokens + report.completion_tokens
        self.replies.append(reply.text)
        return reply


async def alone(rig: Rig, name: str) -> list[str]:
    """The replies of a daemon that serves nobody else."""
    talk = Talk(name)
    async with rig.daemon() as daemon:
        for _ in range(ROUNDS):
            await talk.turn(daemon)
    return talk.replies


async def bytes_are_those_on_disk(daemon: Daemon, name: str) -> int:
    """Resumes a session and exports again what was read; how many files were compared."""
    report = await daemon.lifecycle.resume(name)
    assert report.prefilled_tokens == 0
    view = max(await daemon.machine.engine.views(), key=lambda view: view.last_used)
    compared = await compared_blocks(daemon, view, report.tokens)
    exported = await exported_snapshots(daemon, view)
    for kept in stored_snapshots(daemon, view.tokens):
        assert any(same_state(kept, other) for other in exported)
        compared += 1
    return compared


@pytest.mark.parametrize("kind", KINDS)
async def test_three_sessions_in_turn_on_two_lines(rig_of: RigMaker, kind: str) -> None:
    """
    1. Three sessions talk at once, four rounds, with room for two.
    2. Each of them again in a daemon of its own.
    Result: the same replies; from the second round on only new tokens + 1 are evaluated; what was
    stored is read back and exports to the same bytes.
    """
    rig = rig_of(kind, narrow=True, lines=2)
    talks = [Talk(name) for name in NAMES]
    async with rig.daemon() as daemon:
        for _ in range(ROUNDS):
            await asyncio.gather(*(talk.turn(daemon) for talk in talks))
    for talk in talks:
        expected = await alone(rig_of(kind, narrow=True), talk.name)
        assert talk.replies == expected
    async with rig.daemon() as daemon:
        for talk in talks:
            assert await bytes_are_those_on_disk(daemon, talk.name) > 0


@dataclass
class Crowd:
    """Eight sessions of which some do something at once: talk, leave, fork, are parked."""

    daemon: Daemon
    chance: random.Random
    lines: dict[str, Messages] = field(default_factory=dict)
    turns: int = 0
    left: int = 0
    forked: int = 0
    compared: int = 0

    async def round(self) -> None:
        names = self.chance.sample(range(SESSIONS), 4)
        await asyncio.gather(*(self.one(f"session {number}") for number in names))
        while self.daemon.lifecycle._turns:
            await asyncio.wait(list(self.daemon.lifecycle._turns))
        self.daemon.context.rows.clear()
        if self.chance.random() < 0.2:
            await self.evict_and_restore(self.chance.choice(sorted(self.lines)))

    async def one(self, name: str) -> None:
        line = self.lines.get(name, [])
        if not line or len(line) > MOST_MESSAGES:
            line = [{"role": "system", "content": f"Follow {name}" + " and its rule" * 12}]
        (kind,) = self.chance.choices(["talk", "again", "leave", "fork", "park"], [6, 2, 2, 1, 1])
        if kind == "park" and name in self.lines:
            await self.daemon.lifecycle.park(name)
        elif kind == "leave":
            await self.leave(name, [*line, self.words(name)])
        elif kind == "fork" and name in self.lines:
            await self.fork(name, line)
        elif kind == "again" and len(line) > 1:
            await self.talk(name, line[:-1])
        else:
            await self.talk(name, [*line, self.words(name)])

    async def talk(self, name: str, asked: Messages) -> None:
        reply = await self.daemon.say(name, asked, max_tokens=4)
        self.turns += 1
        self.lines[name] = [*asked, {"role": "assistant", "content": reply.text}]
        tree = await self.daemon.lifecycle._register.tree(name)
        await self.compare(tree.path_tokens(reply.report.turn), reply.report.prompt_tokens)

    async def compare(self, tokens: Tokens, prompt: int) -> None:
        """Every token of a reply is the best one of a context that evaluates the line alone.

        Other chunks round differently, so another one may be taken that is nearly as good.
        """
        for end in range(prompt, len(tokens)):
            logits = await evaluated_from_scratch(self.daemon, tokens[:end])
            gap = float(logits.max() - logits[tokens[end]])
            assert gap <= NEAR * float(np.abs(logits).max()), (end, gap)

    async def leave(self, name: str, asked: Messages) -> None:
        opened = await self.daemon.open(name, asked, max_tokens=30, ignore_eos=True)
        for _ in range(self.chance.randrange(6)):
            await anext(opened.events, None)
        await opened.events.aclose()
        self.left += 1

    async def fork(self, name: str, line: Messages) -> None:
        self.forked += 1
        new = f"{name} fork {self.forked}"
        turns = await self.daemon.lifecycle.turns(name)
        await self.daemon.lifecycle.fork(name, new, turns[-1].turn)
        reply = await self.daemon.say(new, [self.words(new)], max_tokens=2)
        assert reply.report.saved
        await self.talk(name, [*line, self.words(name)])
        await self.daemon.lifecycle.delete(new)

    async def evict_and_restore(self, name: str) -> None:
        await self.daemon.lifecycle.park(name)
        report = await self.daemon.lifecycle.resume(name)
        if not report.prefilled_tokens:
            self.compared += await bytes_are_those_on_disk(self.daemon, name)

    def words(self, name: str) -> dict[str, Any]:
        number = self.chance.randrange(1000)
        return {"role": "user", "content": f"{name} says {number}."}


@pytest.mark.proof_agents_load
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
async def test_eight_sessions_and_five_hundred_turns(rig_of: RigMaker, kind: str) -> None:
    """Room for three lines; random turns, disconnects, forks, evictions and restores."""
    rig = rig_of(kind, narrow=True, lines=3, n_ctx=1024)
    async with rig.daemon() as daemon:
        crowd = Crowd(daemon, random.Random(5))
        while crowd.turns < TURNS:
            await crowd.round()
            assert (await daemon.lifecycle.verify()).clean
        for name in crowd.lines:
            await crowd.evict_and_restore(name)
        assert crowd.left > TURNS // 10
        assert crowd.forked > TURNS // 50
        assert crowd.compared > TURNS // 10
