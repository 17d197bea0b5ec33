"""Agents that talk all at once while everything that can happen to them happens.

Each has words of its own, its canary: wherever they show up in another's line, state has leaked.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from sessiond.engine.fake import BOS
from sessiond.engine.memory import Tokens
from sessiond.errors import Conflict, ContextLengthExceeded, DecodeFailed, SessiondError
from sessiond.store.chain import Kind
from tests.rig import Daemon, Rig
from tests.sessions.checked_engine import Findings, Isolated
from tests.sessions.kinds import MEMORIES, Messages, chat, control, prompt_of

MOST_AGENTS = 8
LONGEST = 480
"""Tokens of a prompt; twice as many do not fit into the smallest context of a crowd."""
FRONTS = ["You are terse. " * 12, "You are terse. " * 9 + "You are kind. " * 3, ""]
CANARY = re.compile(rb"canary-(\d+)\.")
"""With its end: lines may be cut in the middle of one."""
Operation = Callable[["Agent"], Awaitable[None]]


def canaries(text: bytes) -> set[int]:
    return {int(number) for number in CANARY.findall(text)}


def as_bytes(tokens: Tokens) -> bytes:
    """What the tokens of the fake vocabulary say; its special tokens are line ends here."""
    return bytes(token if token < BOS else 10 for token in tokens.tolist())


@dataclass
class Agent:
    """`turns` are the messages up to a reply, of those that a control can go on from.

    A reply that was not to end at its end token has it inside, and its text does not tell where.
    """

    name: str
    canary: int
    known: frozenset[int]
    turns: dict[int, Messages] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)


class Trouble:
    """What llama.cpp may do: fail in a decode, with its memory in doubt, or refuse a state.

    It refuses those that it has no cells for, and takes `pace` seconds for a decode, so that turns
    run beside one another.
    """

    def __init__(self, daemon: Daemon, chance: random.Random) -> None:
        self.fails_after: int | None = None
        self.refuses = 0.0
        self.pace = 0.0005
        self._chance = chance
        self._core = daemon.machine.engine.core
        self._context: Any = daemon.context._context
        self._decode, self._set = self._context.decode_rows, self._context.set_state
        self._context.decode_rows = self._decode_rows
        self._context.set_state = self._set_state

    def _decode_rows(self, rows: Any) -> None:
        time.sleep(self.pace)
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                self.fails_after = None
                self._scramble()
                raise DecodeFailed("llama_decode returned -3.")
        self._decode(rows)

    def _scramble(self) -> None:
        for number, sequence in enumerate(self._context._sequences):
            sequence.cells = {number: 1, 700 + number: 2}
            sequence.window, sequence.state = dict(sequence.cells), (number, 3)

    def _set_state(self, seq: int, payload: Any, *, partial: bool) -> bool:
        ours = payload is self._core.codec._nothing
        if not ours and self._chance.random() < self.refuses:
            return self._set(seq, memoryview(b"not a state"), partial=partial)
        accepted = self._set(seq, payload, partial=partial)
        if self._context._cells_used() > self._context.n_ctx:
            return self._set(seq, memoryview(b"no cells for it"), partial=partial)
        return accepted


class Crowd:
    """Up to eight agents of one daemon after another on the same files."""

    def __init__(self, kind: str, rig: Rig, seed: int, findings: Findings) -> None:
        self.kind, self.rig = kind, rig
        self.findings = findings
        self.agents: dict[str, Agent] = {}
        self.completed = 0
        self.left = 0
        self.errors = 0
        self.compared = 0
        self.log: list[str] = []
        self._chance = random.Random(seed)
        self._numbers = count(1)
        self._cut = False

    async def talk(self, turns: int) -> None:
        """Rounds until so many turns have been completed and compared."""
        await self._start()
        try:
            while self.completed < turns:
                await self._round()
                await self._books()
                if self._chance.random() < 0.1:
                    await self._restart()
            await self._stored_bytes()
        finally:
            await self.daemon.stop()

    # --- what agents do

    async def goes_on(self, agent: Agent) -> None:
        await self._ask(agent, [*self._line(agent), self._words(agent)])

    async def asks_again(self, agent: Agent) -> None:
        line = self._line(agent)
        await self._ask(agent, line[:-1] or [self._words(agent)])

    async def edits(self, agent: Agent) -> None:
        await self._ask(agent, [*self._line(agent)[:-2], self._words(agent)])

    async def begins_anew(self, agent: Agent) -> None:
        await self._ask(agent, self._first(agent))

    async def leaves(self, agent: Agent) -> None:
        """After some events, or before the first."""
        asked = self._fitting(agent, [*self._line(agent), self._words(agent)])
        opened = await self.daemon.open(agent.name, asked, max_tokens=40, ignore_eos=True)
        for _ in range(self._chance.randrange(8)):
            with suppress(StopAsyncIteration):
                await anext(opened.events)
        await opened.events.aclose()
        self.left += 1

    async def vanishes(self, agent: Agent) -> None:
        """At any moment at all."""
        asked = self._fitting(agent, [*self._line(agent), self._words(agent)])
        reading = asyncio.create_task(
            self.daemon.say(agent.name, asked, max_tokens=40, ignore_eos=True)
        )
        await asyncio.wait({reading}, timeout=self._chance.random() * 0.03)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        self.left += 1

    async def asks_too_much(self, agent: Agent) -> None:
        with pytest.raises(ContextLengthExceeded):
            await self.daemon.open(agent.name, chat("x" * (self.daemon.machine.limit + 1)))

    async def forks(self, agent: Agent) -> None:
        known = sorted(agent.turns.keys() & agent.acknowledged)
        if not known:
            return await self.begins_anew(agent)
        at = self._chance.choice(known)
        new = self._agent(agent.known, {at: agent.turns[at]})
        self.agents[new.name] = new
        with suppress(Conflict):  # somebody may have begun to talk in it already
            await self.daemon.lifecycle.fork(agent.name, new.name, at)
            new.acknowledged.add(at)
        await self.goes_on(new)

    async def is_parked(self, agent: Agent) -> None:
        if agent.acknowledged:
            with suppress(Conflict):
                await self.daemon.lifecycle.park(agent.name)

    async def is_resumed(self, agent: Agent) -> None:
        if agent.acknowledged:
            with suppress(Conflict):
                await self.daemon.lifecycle.resume(agent.name)

    # --- rounds

    async def _round(self) -> None:
        """Some operations at once, then silence."""
        while len(self.agents) < min(MOST_AGENTS, 3 + self.completed // 4):
            agent = self._agent(frozenset(), {})
            self.agents[agent.name] = agent
        self._make_trouble()
        doing = [asyncio.create_task(self._one()) for _ in range(self._chance.randint(3, 6))]
        if self._chance.random() < 0.05:
            await self._cut_short(doing)
        for done in await asyncio.gather(*doing, return_exceptions=True):
            if isinstance(done, Exception):
                raise done
        self._cut = False
        while self.daemon.lifecycle._turns:
            await asyncio.wait(list(self.daemon.lifecycle._turns))
        self.daemon.context.rows.clear()

    async def _one(self) -> None:
        operations: list[tuple[Operation, int]] = [
            (self.goes_on, 8),
            (self.asks_again, 2),
            (self.edits, 3),
            (self.begins_anew, 2),
            (self.leaves, 2),
            (self.vanishes, 2),
            (self.asks_too_much, 1),
            (self.forks, 1),
            (self.is_parked, 2),
            (self.is_resumed, 2),
        ]
        (operation,) = self._chance.choices(
            [operation for operation, _ in operations], [weight for _, weight in operations]
        )
        agent = self.agents[self._chance.choice(sorted(self.agents))]
        self.log.append(f"{operation.__name__} {agent.name}")  # type: ignore[attr-defined]
        try:
            await operation(agent)
        except SessiondError:
            if not self._cut:
                raise
            self.errors += 1

    def _make_trouble(self) -> None:
        chance, trouble = self._chance, self._trouble
        trouble.fails_after = chance.randrange(60) if chance.random() < 0.25 else None
        trouble.refuses = 0.2 if chance.random() < 0.25 else 0.0

    async def _cut_short(self, doing: list[asyncio.Task[None]]) -> None:
        """The daemon goes while they talk; what was acknowledged stays."""
        self._cut = True
        await asyncio.wait(doing, timeout=self._chance.random() * 0.05)
        await self._restart()
        for task in doing:
            task.cancel()

    async def _restart(self) -> None:
        kill = self._chance.random() < 0.5
        self.log.append("kill" if kill else "stop")
        await (self.daemon.kill() if kill else self.daemon.stop())
        await self._start()

    async def _start(self) -> None:
        self.daemon = Daemon(self.rig)
        await self.daemon.start()
        self._trouble = Trouble(self.daemon, self._chance)

    # --- what must be true

    async def _ask(self, agent: Agent, messages: Messages) -> None:
        length = self._chance.choice([1, 6, 12, 80])
        messages = self._fitting(agent, messages)
        ends = length < 80
        reply = await self.daemon.say(agent.name, messages, max_tokens=length, ignore_eos=not ends)
        assert reply.text == control(self.kind, messages, length, ignore_eos=not ends), self.log
        assert reply.report.turn not in agent.acknowledged
        if self._cut and not reply.report.saved:
            return  # the ledger was gone already, and the reply said so
        assert reply.report.saved
        said = {"role": "assistant", "content": reply.text}
        agent.acknowledged.add(reply.report.turn)
        if reply.report.completion_tokens == len(reply.text):
            agent.turns[reply.report.turn] = [*messages, said]
        self.completed += 1
        if self._cut:
            return
        tree = await self.daemon.lifecycle._register.tree(agent.name)
        prompt = tree.path_tokens(reply.report.turn)[: reply.report.prompt_tokens]
        assert canaries(as_bytes(prompt)) <= agent.known, self.log

    async def _books(self) -> None:
        """Nothing foreign anywhere, budgets kept, everything stored intact, no turn lost."""
        machine, lifecycle = self.daemon.machine, self.daemon.lifecycle
        assert self.findings.faults == [], self.log
        ids = {record.id: record.name for record in lifecycle._register.records}
        for view in await machine.engine.views():
            if view.owner is not None and view.owner.session in ids:
                known = self.agents[ids[view.owner.session]].known
                assert canaries(as_bytes(view.tokens)) <= known, self.log
        for name in ids.values():
            agent = self.agents[name]
            for message in await lifecycle.transcript(name):
                assert canaries(message.content.encode()) <= agent.known, self.log
            assert agent.acknowledged <= {turn.turn for turn in await lifecycle.turns(name)}
        machine.checkpoints._ring.check_integrity(deep=True)
        machine.store.check_integrity()
        report = await lifecycle.verify()
        assert (report.clean, report.unsaved_turns) == (True, 0)
        assert machine.checkpoints.stats.bytes <= self.rig.ring
        assert machine.store.usage().bytes <= self.rig.quota
        await self._thin_out()

    async def _thin_out(self) -> None:
        while len(self.agents) > MOST_AGENTS:
            name = self._chance.choice(sorted(self.agents))
            if name in self.daemon.lifecycle._register:
                await self.daemon.lifecycle.delete(name)
            del self.agents[name]

    async def _stored_bytes(self) -> None:
        """What is on disk of every turn is what an isolated context exports."""
        store = self.daemon.machine.store
        await self.daemon.machine.saver.save_all()
        alone = Isolated(MEMORIES[self.kind])
        for agent in self.agents.values():
            for turn in agent.turns.keys() & agent.acknowledged:
                tree = await self.daemon.lifecycle._register.tree(agent.name)
                tokens = tree.path_tokens(turn)
                stored = store.lookup(tokens)
                for block in stored.blocks:
                    if block.usable == block.length:
                        alone.follow(tokens[: block.start + block.length])
                        expected = alone.block(block.start, block.start + block.length)
                        assert bytes(store.read(block.key)) == expected
                        self.compared += 1
                for snapshot in stored.snapshots:
                    if snapshot.kind is Kind.SNAPSHOT:
                        expected = alone.follow(tokens[: snapshot.position]).snapshot()
                        assert bytes(store.read(snapshot.key)) == expected
                        self.compared += 1

    # --- inside

    def _agent(self, known: frozenset[int], turns: dict[int, Messages]) -> Agent:
        number = next(self._numbers)
        return Agent(f"agent {number}", number, known | {number}, turns)

    def _line(self, agent: Agent) -> Messages:
        """Of any of its turns; a new one for an agent that has none."""
        if not agent.turns:
            return self._first(agent)[:-1]
        return agent.turns[self._chance.choice(sorted(agent.turns))]

    def _fitting(self, agent: Agent, messages: Messages) -> Messages:
        return messages if len(prompt_of(messages)) <= LONGEST else self._first(agent)

    def _first(self, agent: Agent) -> Messages:
        front = self._chance.choice(FRONTS)
        return [*chat(front=front), self._words(agent)]

    def _words(self, agent: Agent) -> dict[str, Any]:
        rest = "".join(self._chance.choices("abc ", k=self._chance.randrange(60)))
        return {"role": "user", "content": f"I am canary-{agent.canary}. {rest}"}
