"""Histories that are rewritten in place: refused with the reason, or let through with the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sessiond.metrics import VIOLATIONS
from sessiond.sessions.cause import Cause
from sessiond.sessions.explanation import ContextEditRejected, Outcome
from tests.rig import Daemon
from tests.rig.rig import fake
from tests.sessions.agents import OUTPUT, REMINDER, Agent, Fields, agent_rig, tool
from tests.sessions.conftest import MEMORY
from tests.sessions.kinds import MEMORIES

contrasts = pytest.mark.parametrize("kind", ["attention", "hybrid"])
Change = Callable[[Agent], None]
Worked = dict[str, tuple[Path, Agent]]
AGAIN = "And once more?"


@dataclass(frozen=True)
class Rewritten:
    """`change` rewrites what the client holds; the rest is what is said of it."""

    change: Change
    cause: Cause
    param: str
    sentence: str
    message: int = 0


def front(old: str, new: str) -> Change:
    return content(0, old, new)


def content(index: int, old: str, new: str) -> Change:
    def change(agent: Agent) -> None:
        told = agent.messages[index]
        assert old in told["content"]
        agent.messages[index] = told | {"content": told["content"].replace(old, new)}

    return change


def replaced(start: int, stop: int, *new: Fields) -> Change:
    def change(agent: Agent) -> None:
        agent.messages[start:stop] = new

    return change


def moved(start: int, stop: int, to: int) -> Change:
    """Messages from `start` up to `stop` stand before what was message `to`."""

    def change(agent: Agent) -> None:
        told = agent.messages
        agent.messages = [*told[:start], *told[stop:to], *told[start:stop], *told[to:]]

    return change


def tools(*new: Fields) -> Change:
    def change(agent: Agent) -> None:
        agent.tools = list(new)

    return change


def reminder_moved(agent: Agent) -> None:
    content(5, f" {REMINDER}", "")(agent)
    content(15, "?", f"? {REMINDER}")(agent)


def argument(agent: Agent) -> None:
    call = agent.messages[2]["tool_calls"][0]
    function = call["function"] | {"arguments": {"path": "main.py", "from": 2}}
    agent.messages[2] = agent.messages[2] | {"tool_calls": [call | {"function": function}]}


def role(index: int, new: str) -> Change:
    def change(agent: Agent) -> None:
        agent.messages[index] = agent.messages[index] | {"role": new}

    return change


def says(text: str, role: str = "user") -> Fields:
    return {"role": role, "content": text}


READ, GREP = tool("read_file", "reads a file"), tool("grep")
SYSTEM_CHANGED = "The system prompt changed."
SUMMARY = f"So far: {OUTPUT}"
PROMPT, TOOLS = "messages[0].content", "tools"
REWRITES_IN_PLACE = {
    "clock": Rewritten(
        front("Time: 10:02", "Time: 10:03"),
        "clock",
        PROMPT,
        "The system prompt changed (clock 10:02 → 10:03).",
    ),
    "iso timestamp": Rewritten(
        front("T10:02:11Z", "T11:47:00Z"),
        "clock",
        PROMPT,
        "The system prompt changed (clock 10:02:11Z → 11:47:00Z).",
    ),
    "date": Rewritten(
        front("Log of 2025-11-29", "Log of 2025-11-30"),
        "date",
        PROMPT,
        "The system prompt changed (date 2025-11-29 → 2025-11-30).",
    ),
    "date in words": Rewritten(
        front("November 29, 2025", "November 30, 2025"),
        "date",
        PROMPT,
        "The system prompt changed (date November 29, 2025 → November 30, 2025).",
    ),
    "weekday": Rewritten(
        front("Saturday", "Sunday"),
        "date",
        PROMPT,
        "The system prompt changed (date Saturday → Sunday).",
    ),
    "uuid": Rewritten(
        front("3f2504e0-4f89-11d3", "77aa04e0-4f89-11d3"),
        "identifier",
        PROMPT,
        "The system prompt changed (id 3f2504e0-4f89-11d3-9a0c… → 77aa04e0-4f89-11d3-9a0c…).",
    ),
    "session id": Rewritten(
        front("sess_01AbCd", "sess_02XyZz"),
        "identifier",
        PROMPT,
        "The system prompt changed (id sess_01AbCd → sess_02XyZz).",
    ),
    "git status": Rewritten(
        front("M main.py", "M main.py, ?? new.py"), "system_changed", PROMPT, SYSTEM_CHANGED
    ),
    "clock and more": Rewritten(
        content(0, "10:02\n", "10:03, and it rains\n"), "system_changed", PROMPT, SYSTEM_CHANGED
    ),
    "memory prepended": Rewritten(
        front("You are", "Memory: likes tea.\n\nYou are"), "system_changed", PROMPT, SYSTEM_CHANGED
    ),
    "memory as a message before": Rewritten(
        replaced(0, 0, says("Memory: likes tea.", "system")),
        "system_changed",
        PROMPT,
        SYSTEM_CHANGED,
    ),
    "memory as a message behind": Rewritten(
        replaced(1, 1, says("Memory: likes tea.", "system")),
        "system_changed",
        "messages[1].role",
        SYSTEM_CHANGED,
        1,
    ),
    "white space in the system prompt": Rewritten(
        front("\nTime", "\n\nTime"),
        "whitespace",
        PROMPT,
        "White space in the system prompt changed.",
    ),
    "tool added late": Rewritten(
        tools(READ, GREP, tool("late")), "tools_changed", TOOLS, "The tool definitions changed."
    ),
    "tool removed": Rewritten(tools(READ), "tools_changed", TOOLS, "The tool definitions changed."),
    "tool described otherwise": Rewritten(
        tools(READ, tool("grep", "finds text")),
        "tools_changed",
        TOOLS,
        "The tool definitions changed.",
    ),
    "tool schema": Rewritten(
        tools(READ, tool("grep", limit=20)), "tools_changed", TOOLS, "The tool definitions changed."
    ),
    "date in the first user message": Rewritten(
        content(1, "2025-11-29", "2025-11-30"),
        "date",
        "messages[1].content",
        "Message 2 changed (date 2025-11-29 → 2025-11-30).",
        1,
    ),
    "white space in an old message": Rewritten(
        content(5, "the longest", "the  longest"),
        "whitespace",
        "messages[5].content",
        "White space in message 6 changed.",
        5,
    ),
    "old message edited": Rewritten(
        content(5, "longest", "shortest"),
        "history_edited",
        "messages[5].content",
        "Message 6 was changed, with later ones still there.",
        5,
    ),
    "tool result pruned": Rewritten(
        content(3, OUTPUT, "[output removed]"),
        "history_edited",
        "messages[3].content",
        "Message 4 was changed, with later ones still there.",
        3,
    ),
    "argument edited": Rewritten(
        argument,
        "history_edited",
        "messages[2].tool_calls[0].function.arguments",
        "Message 3 was changed, with later ones still there.",
        2,
    ),
    "reply edited": Rewritten(
        content(6, "it seems", "it really seems"),
        "history_edited",
        "messages[6].content",
        "Message 7 was changed, with later ones still there.",
        6,
    ),
    "reply cut short": Rewritten(
        content(6, " is what you ask for, it seems to me.", ""),
        "history_edited",
        "messages[6].content",
        "Message 7 was changed, with later ones still there.",
        6,
    ),
    "reminder moved": Rewritten(
        reminder_moved,
        "history_edited",
        "messages[5].content",
        "Message 6 was changed, with later ones still there.",
        5,
    ),
    "message inserted": Rewritten(
        replaced(7, 7, says("By the way, hurry.")),
        "history_edited",
        "messages[7].content",
        "Message 8 was changed, with later ones still there.",
        7,
    ),
    "message dropped": Rewritten(
        replaced(6, 7),
        "history_edited",
        "messages[6].role",
        "Message 7 was changed, with later ones still there.",
        6,
    ),
    "role changed": Rewritten(
        role(7, "system"),
        "history_edited",
        "messages[7].role",
        "Message 8 was changed, with later ones still there.",
        7,
    ),
    "messages in another order": Rewritten(
        moved(5, 7, 9),
        "reordered",
        "messages[5].content",
        "Messages from message 6 on are in another order.",
        5,
    ),
    "front trimmed": Rewritten(
        replaced(1, 5),
        "front_trimmed",
        "messages[1].content",
        "The oldest messages were left out.",
        1,
    ),
    "summary as long as what it replaces": Rewritten(
        replaced(1, 5, says(SUMMARY)),
        "history_summarised",
        "messages[1].content",
        "Earlier messages from message 2 on were replaced by a summary.",
        1,
    ),
    "summary and its acknowledgement": Rewritten(
        replaced(1, 5, says(SUMMARY), says("Understood.", "assistant")),
        "history_summarised",
        "messages[1].content",
        "Earlier messages from message 2 on were replaced by a summary.",
        1,
    ),
}
each_rewrite = pytest.mark.parametrize("name", REWRITES_IN_PLACE)


@pytest.fixture(scope="module")
def worked() -> Iterator[Worked]:
    """What a daemon of each kind has left on disk after the whole talk."""

    async def talk(kind: str, directory: Path) -> Agent:
        agent = Agent()
        async with agent_rig(kind, directory).daemon() as daemon:
            await agent.work(daemon)
        return agent

    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as parent:
        directories = {kind: Path(parent) / kind for kind in ("attention", "hybrid")}
        for directory in directories.values():
            directory.mkdir()
        yield {kind: (at, asyncio.run(talk(kind, at))) for kind, at in directories.items()}


@asynccontextmanager
async def talking(
    worked: Worked, kind: str, directory: Path, **options: Any
) -> AsyncGenerator[tuple[Daemon, Agent], None]:
    """The talk goes on, in a daemon of its own."""
    left, agent = worked[kind]
    copytree(left, directory, dirs_exist_ok=True)
    rig = agent_rig(kind, directory, **options)
    rig.open_engine = fake(MEMORIES[kind])
    async with rig.daemon(kill=True) as daemon:
        yield daemon, replace(agent, messages=list(agent.messages), tools=list(agent.tools))


def standing(directory: Path, daemon: Daemon) -> dict[str, Any]:
    """All that a refused request may not change. The -shm file holds locks only."""
    files = (f for f in directory.rglob("*") if f.is_file() and not f.name.endswith("-shm"))
    return {
        "files": {str(file): file.read_bytes() for file in files},
        "ring": daemon.machine.checkpoints.stats,
        "entries": {entry.key: entry.rank for entry in daemon.machine.checkpoints._ring.entries()},
        "evaluated": daemon.evaluated,
        "sessions": daemon.lifecycle._register.records,
        "sequences": [vars_of(one) for one in daemon.context._context._sequences],  # type: ignore[attr-defined]
    }


def vars_of(sequence: Any) -> tuple[int, int, Any]:
    return len(sequence.cells), len(sequence.window), sequence.state


async def refusal(daemon: Daemon, agent: Agent, **options: Any) -> ContextEditRejected:
    with pytest.raises(ContextEditRejected) as refused:
        await daemon.say(agent.session, agent.asking(AGAIN), tools=agent.tools, **options)
    return refused.value


def rewriting(agent: Agent, change: Change) -> Agent:
    other = Agent(agent.session, list(agent.messages), list(agent.tools))
    change(other)
    return other


@each_rewrite
async def test_a_rewrite_is_refused_or_served_with_the_same_reason(
    worked: Worked, state_dir: Path, name: str
) -> None:
    expected = REWRITES_IN_PLACE[name]
    async with talking(worked, "hybrid", state_dir) as (daemon, agent):
        await agent.ask(daemon, "Is all of it still there?")
        await daemon.machine.saver.save_all()
        await daemon.machine.checkpoints.write()
        before = standing(state_dir, daemon)
        other = rewriting(agent, expected.change)

        refused = (await refusal(daemon, other)).explanation
        assert standing(state_dir, daemon) == before
        assert (refused.cause, refused.sentence) == (expected.cause, expected.sentence)
        assert (refused.param, refused.first_diff.message) == (expected.param, expected.message)
        assert refused.before != refused.after
        assert refused.session_tokens == agent.standing
        assert refused.discarded_tokens == agent.standing - refused.reusable_tokens > 60
        assert refused.outcome == "refused"
        assert expected.sentence[1:-1] in refused.message
        assert (await daemon.lifecycle.explain("talk"))[-1] == refused

        await agent.ask(daemon, "A plain question?")

        served = (
            await daemon.say("talk", other.asking(AGAIN), tools=other.tools, policy="fork")
        ).report
        assert served.miss is not None
        assert (served.miss.cause, served.miss.message) == (expected.cause, expected.sentence)
        assert 0 < served.miss.tokens <= served.prefilled_tokens
        assert (await daemon.lifecycle.explain("talk"))[-1].outcome == "forked"
        await agent.ask(daemon, "Another plain question?")


def test_there_are_enough_kinds_of_them() -> None:
    assert len(REWRITES_IN_PLACE) >= 30


def counted(outcome: Outcome, cause: Cause) -> float:
    return VIOLATIONS.labels(outcome, cause)._value.get()


@contrasts
async def test_a_small_rewrite_behind_the_front_is_let_through_and_counted(
    worked: Worked, state_dir: Path, kind: str
) -> None:
    async with talking(worked, kind, state_dir, max_rewind=400) as (daemon, agent):
        before = counted("rewound", "history_edited")
        other = rewriting(agent, content(-4, "a few", "two"))
        report = (await daemon.say("talk", other.asking(AGAIN), tools=other.tools)).report
        explained = (await daemon.lifecycle.explain("talk"))[-1]
        assert explained.outcome == "rewound"
        assert explained.discarded_tokens <= 400
        assert report.miss is not None
        assert report.miss.tokens == explained.discarded_tokens
        assert counted("rewound", "history_edited") == before + 1
        assert await refusal(daemon, rewriting(agent, front("10:02", "10:03")))
        await agent.ask(daemon, "Is the old line still there?")


@contrasts
async def test_a_summary_of_half_the_length_is_a_compaction(
    worked: Worked, state_dir: Path, kind: str
) -> None:
    async with talking(worked, kind, state_dir) as (daemon, agent):
        other = rewriting(agent, replaced(1, 18, says("So far: six functions were looked at.")))
        report = (await daemon.say("talk", other.asking(AGAIN), tools=other.tools)).report
        assert report.miss is not None
        assert report.miss.cause == "history_summarised"
        explained = (await daemon.lifecycle.explain("talk"))[-1]
        assert (explained.outcome, explained.turn) == ("compacted", report.turn)


async def test_what_a_client_never_sends_back_is_not_what_a_compaction_saves(
    state_dir: Path,
) -> None:
    """Of a model that thinks more than it says, a history without the thoughts is short anyway."""
    async with agent_rig("attention", state_dir).daemon(kill=True) as daemon:
        model = daemon.machine.engine.model
        model.replies.clear()  # type: ignore[attr-defined]
        model.replies += [f"<think>{'hm ' * 60}</think>Answer {n}." for n in range(8)]  # type: ignore[attr-defined]
        agent = Agent()
        for n in range(8):
            await agent.ask(daemon, f"Question {n}, and say it in a few words?")
            agent.messages[-1]["content"] = f"Answer {n}."
        other = rewriting(agent, content(3, "a few", "two"))
        assert (await refusal(daemon, other)).explanation.cause == "history_edited"
        short = rewriting(agent, replaced(1, 13, says("Six answers.")))
        await daemon.say("talk", short.asking(AGAIN), tools=short.tools)
        assert (await daemon.lifecycle.explain("talk"))[-1].outcome == "compacted"


@pytest.mark.parametrize(
    "name",
    [
        "clock",
        "memory as a message behind",
        "tool added late",
        "tool result pruned",
        "front trimmed",
        "messages in another order",
    ],
)
async def test_a_declared_compaction_lets_any_rewrite_through(
    worked: Worked, state_dir: Path, name: str
) -> None:
    async with talking(worked, "attention", state_dir) as (daemon, agent):
        other = rewriting(agent, REWRITES_IN_PLACE[name].change)
        asked = other.asking(AGAIN)
        first = await daemon.say("talk", asked, tools=other.tools, compact=True)
        assert (await daemon.lifecycle.explain("talk"))[-1].outcome == "compacted"
        assert first.report.miss is not None
        # What was let through is a line like any other: tried again, and gone on with otherwise.
        again = await daemon.say("talk", asked, tools=other.tools)
        assert (again.report.miss, again.report.prefilled_tokens) == (None, 1)
        edited = await daemon.say("talk", other.asking("Or else?"), tools=other.tools)
        assert edited.report.miss is None
        further = rewriting(agent, front("You are a careful", "You are a careless"))
        assert (await refusal(daemon, further)).explanation.cause == "system_changed"


async def test_a_permission_to_compact_holds_for_one_rewrite_also_after_a_restart(
    worked: Worked, state_dir: Path
) -> None:
    rig = agent_rig("hybrid", state_dir)
    async with talking(worked, "hybrid", state_dir) as (daemon, agent):
        await daemon.lifecycle.compact("talk")
    async with rig.daemon(kill=True) as daemon:
        await agent.ask(daemon, "A plain question does not use it up?")
        other = rewriting(agent, front("10:02\n", "10:03\n"))
        await daemon.say("talk", other.asking(AGAIN), tools=other.tools)
        assert (await daemon.lifecycle.explain("talk"))[-1].outcome == "compacted"
        await refusal(daemon, rewriting(agent, front("10:02\n", "10:04\n")))
    async with rig.daemon() as daemon:
        await refusal(daemon, rewriting(agent, front("10:02\n", "10:05\n")))


async def test_a_front_of_two_system_messages_is_looked_at_as_one(state_dir: Path) -> None:
    async with agent_rig("attention", state_dir).daemon(kill=True) as daemon:
        agent = Agent()
        agent.messages.append(says("The build ran at 09:00.", "system"))
        await agent.work(daemon)
        other = rewriting(agent, front("Time: 10:02", "Time: 10:03"))
        content(1, "09:00", "10:03")(other)
        assert (await refusal(daemon, other)).explanation.cause == "clock"
        content(1, "10:03", "10:03 and failed")(other)
        assert (await refusal(daemon, other)).explanation.cause == "system_changed"


@contrasts
async def test_a_client_that_rewrites_every_turn_is_told_what_it_costs_each_time(
    worked: Worked, state_dir: Path, kind: str
) -> None:
    """Under fork every turn begins a line of its own; the last one is what the next is held to."""
    async with talking(worked, kind, state_dir) as (daemon, agent):
        told, known = agent.messages, agent.standing
        for minute in range(3, 6):
            now = told[0]["content"].replace(f"Time: 10:0{minute - 1}", f"Time: 10:0{minute}")
            told = [told[0] | {"content": now}, *told[1:], says(f"Minute {minute}?")]
            reply = await daemon.say("talk", told, tools=agent.tools, policy="fork")
            explained = (await daemon.lifecycle.explain("talk"))[-1]
            clocks = f"(clock 10:0{minute - 1} → 10:0{minute})"
            assert explained.sentence == f"The system prompt changed {clocks}."
            assert known <= explained.session_tokens <= known + 1
            known = reply.report.prompt_tokens + reply.report.completion_tokens
            told = [*told, says(reply.text, "assistant")]
