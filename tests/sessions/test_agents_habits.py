"""What agents do besides appending, and what it costs: the table in docs/behaviour.md."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.sessions.explanation import ContextEditRejected
from sessiond.sessions.rules import Rules
from sessiond.sessions.turn import SessionChange
from tests.rig import Daemon, Reply, Rig
from tests.sessions.families import TOOLS, Message
from tests.sessions.kinds import FRONT, KINDS, MEMORIES, RENDERER, prompt_of

each_kind = pytest.mark.parametrize("kind", KINDS)
MAX_REWIND = 150
"""Tokens; small, so that talks can be."""
ROUND = len(
    RENDERER.text("<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n", first=False)
)
"""Tokens that the template puts around a question and before the reply."""
OUTPUT = "a line of output\n" * 12
PLACEHOLDER = "[Old tool result content cleared]"


@dataclass
class Agent:
    """Holds a conversation as agents do. `named` by a person, it only accepts additions."""

    kind: str
    directory: Path
    named: bool = False
    session: str = "agent"
    tools: Sequence[dict[str, Any]] = ()
    rules: Rules = field(default_factory=lambda: Rules(max_rewind=MAX_REWIND))
    script: deque[str] = field(default_factory=deque)
    messages: list[Message] = field(default_factory=lambda: [{"role": "system", "content": FRONT}])
    last: Reply | None = None
    said: int = 0

    @property
    def rig(self) -> Rig:
        def open_() -> tuple[FakeModel, FakeContext]:
            model = FakeModel(MEMORIES[self.kind])
            model.replies = self.script
            return model, FakeContext(model)

        return Rig(self.directory, open_, rules=self.rules)

    @property
    def standing(self) -> int:
        assert self.last is not None
        return self.last.report.prompt_tokens + self.last.report.completion_tokens

    async def send(self, daemon: Daemon, messages: list[Message], **options: Any) -> Reply:
        """A request of its own making; the conversation goes on from it."""
        self.said += 1
        self.script.append(f"This is reply number {self.said}.")
        try:
            reply = await daemon.say(
                self.session,
                messages,
                max_tokens=None,
                named=self.named,
                tools=self.tools,
                **options,
            )
        except ContextEditRejected:
            self.script.pop()
            raise
        self.messages = [*messages, {"role": "assistant", "content": reply.text}]
        self.last = reply
        return reply

    async def says(self, daemon: Daemon, text: str, role: str = "user") -> Reply:
        asked: Message = {"role": role, "content": text}
        if role == "tool":
            asked["tool_call_id"] = "call"
        return await self.send(daemon, [*self.messages, asked])

    async def works(self, daemon: Daemon, rounds: int) -> None:
        """A question and a tool's output, so many times."""
        for number in range(rounds):
            await self.says(daemon, f"Do step {number}.")
            await self.says(daemon, f"{number}: {OUTPUT}", role="tool")

    def edited(self, index: int, content: object) -> list[Message]:
        messages = [dict(message) for message in self.messages]
        messages[index]["content"] = content
        return messages


def asks(text: str) -> Message:
    return {"role": "user", "content": text}


def cost(reply: Reply) -> tuple[int, str | None]:
    miss = reply.report.miss
    return reply.report.prefilled_tokens, None if miss is None else miss.cause


async def outcome(daemon: Daemon, session: str = "agent") -> tuple[str, str]:
    """Of the last rewrite."""
    *_, last = await daemon.lifecycle.explain(session)
    return last.outcome, last.cause


async def refusal(agent: Agent, daemon: Daemon, messages: list[Message]) -> tuple[str, str | None]:
    evaluated, turns = daemon.evaluated, len(await daemon.lifecycle.turns(agent.session))
    with pytest.raises(ContextEditRejected) as refused:
        await agent.send(daemon, messages)
    assert daemon.evaluated == evaluated
    assert len(await daemon.lifecycle.turns(agent.session)) == turns
    return refused.value.explanation.cause, refused.value.param


def check_appended(agent: Agent, before: int, reply: Reply) -> None:
    """Nothing was read again; the first token to be evaluated is the one behind the last reply."""
    assert reply.report.cached_tokens == before
    assert reply.report.miss is None


# --- a voice assistant: time and states in the system prompt


def house(minute: int, *on: int) -> str:
    states = "".join(f"\nlight.room_{n} = {'on' if n in on else 'off'}" for n in range(60))
    return f"{FRONT}\nThe time is 18:{minute:02}.\nDevices:{states}"


def house_chat(minute: int, *on: int, said: str = "Lights?") -> list[Message]:
    return [{"role": "system", "content": house(minute, *on)}, asks(said)]


@each_kind
async def test_a_voice_assistant_reads_its_front_again_for_every_utterance(
    state_dir: Path, kind: str
) -> None:
    """A conversation of its own each, which is no rewrite. Attention shares what stands before
    the clock; other memories have nothing captured inside the front.
    """
    agent = Agent(kind, state_dir)
    async with agent.rig.daemon() as daemon:
        for minute in range(3):
            agent.session = f"utterance-{minute}"
            reply = await agent.send(daemon, house_chat(minute, minute))
            whole = reply.report.prompt_tokens
            shared = len(f"<|im_start|>system\n{FRONT}\nThe time is 18:0") - 11
            if minute:
                expected = whole - shared if kind == "attention" else whole
                assert cost(reply) == (expected, None)
            assert await daemon.lifecycle.explain(agent.session) == ()


@each_kind
async def test_a_voice_assistant_in_one_session_is_told_why_it_is_slow(
    state_dir: Path, kind: str
) -> None:
    agent = Agent(kind, state_dir)
    async with agent.rig.daemon() as daemon:
        await agent.send(daemon, house_chat(0))
        messages = [*agent.edited(0, house(1)), asks("And now?")]
        prefilled, cause = cost(await agent.send(daemon, messages))
        assert (cause, await outcome(daemon)) == ("clock", ("forked", "clock"))
        assert prefilled > len(house(1)) - len(FRONT) - 20
        messages = [*agent.edited(0, house(1, 7)), asks("And now?")]
        _, cause = cost(await agent.send(daemon, messages))
        assert (cause, await outcome(daemon)) == ("system_changed", ("forked", "system_changed"))


@each_kind
async def test_a_voice_assistant_in_a_session_of_a_person_is_refused(
    state_dir: Path, kind: str
) -> None:
    agent = Agent(kind, state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        await agent.send(daemon, house_chat(0))
        changed = [*agent.edited(0, house(1)), asks("And now?")]
        assert await refusal(agent, daemon, changed) == ("clock", "messages[0].content")
        changed = [*agent.edited(0, house(0, 7)), asks("And now?")]
        assert await refusal(agent, daemon, changed) == ("system_changed", "messages[0].content")


@each_kind
async def test_a_voice_assistant_with_a_pinned_front_reads_what_is_new(
    state_dir: Path, kind: str
) -> None:
    pinned = Rules(pinned_front=("clock", r"(?<== )\w+$"))
    agent = Agent(kind, state_dir, rules=pinned)
    async with agent.rig.daemon() as daemon:
        await agent.send(daemon, house_chat(0))
        for minute in range(1, 4):
            agent.session = f"utterance-{minute}"
            reply = await agent.send(daemon, house_chat(minute, minute))
            news = f"The time is 18:0{minute}.\nlight.room_{minute} = on"
            told = f"Lights?\n\nChanged since the system prompt above was written:\n{news}"
            assert reply.report.prefilled_tokens <= len(told) + ROUND
            assert reply.report.miss is None


# --- an agent that prunes old tool outputs


@each_kind
async def test_pruning_a_late_output_goes_back_that_far(state_dir: Path, kind: str) -> None:
    agent = Agent(kind, state_dir, named=True, rules=Rules())
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 3)
        messages = [*agent.edited(-2, PLACEHOLDER), asks("Go on.")]
        kept = len(PLACEHOLDER) + len(agent.messages[-1]["content"])
        reply = await agent.send(daemon, messages)
        assert await outcome(daemon) == ("rewound", "history_edited")
        prefilled, cause = cost(reply)
        assert cause == "history_edited"
        assert kept < prefilled <= kept + len("Go on.") + 2 * ROUND


@each_kind
async def test_pruning_an_early_output_reads_all_that_follows(state_dir: Path, kind: str) -> None:
    agent = Agent(kind, state_dir)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 5)
        before = agent.standing
        messages = [*agent.edited(3, PLACEHOLDER), asks("Go on.")]
        reply = await agent.send(daemon, messages)
        assert await outcome(daemon) == ("forked", "history_edited")
        prefilled, cause = cost(reply)
        assert cause == "history_edited"
        assert prefilled > before - len(FRONT) - 3 * len(OUTPUT)
        check_appended(agent, agent.standing, await agent.says(daemon, "And then?"))


async def test_pruning_an_early_output_is_refused_where_a_person_said_so(state_dir: Path) -> None:
    agent = Agent("hybrid", state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 5)
        messages = [*agent.edited(3, PLACEHOLDER), asks("Go on.")]
        assert await refusal(agent, daemon, messages) == ("history_edited", "messages[3].content")


@pytest.mark.parametrize("named", [False, True])
async def test_pruning_most_outputs_is_a_compaction(state_dir: Path, named: bool) -> None:
    agent = Agent("hybrid", state_dir, named=named)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 5)
        pruned = [
            {**m, "content": PLACEHOLDER} if m["role"] == "tool" else m for m in agent.messages
        ]
        reply = await agent.send(daemon, [*pruned, asks("Go on.")])
        assert await outcome(daemon) == ("compacted", "history_edited")
        assert cost(reply)[1] == "history_edited"


# --- an agent that summarises


def summarised(agent: Agent, summary: str, kept: int) -> list[Message]:
    """The front, a summary as the first user message, the last messages, a question."""
    return [agent.messages[0], asks(summary), *agent.messages[-kept:], asks("Go on.")]


@each_kind
@pytest.mark.parametrize("named", [False, True])
async def test_a_summary_of_less_than_half_is_a_compaction(
    state_dir: Path, kind: str, named: bool
) -> None:
    """It is let through whatever the policy, and the front is not read again."""
    agent = Agent(kind, state_dir, named=named)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 4)
        reply = await agent.send(daemon, summarised(agent, "Summary: all went well.", 3))
        assert await outcome(daemon) == ("compacted", "history_summarised")
        prefilled, cause = cost(reply)
        assert cause == "history_summarised"
        assert prefilled <= reply.report.prompt_tokens - len(FRONT)
        check_appended(agent, agent.standing, await agent.says(daemon, "And then?"))


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
async def test_a_summary_of_more_than_half_is_a_rewrite(state_dir: Path, kind: str) -> None:
    agent = Agent(kind, state_dir)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 4)
        messages = summarised(agent, "Summary: " + OUTPUT * 3, 7)
        reply = await agent.send(daemon, messages)
        assert await outcome(daemon) == ("forked", "history_summarised")
        assert cost(reply)[1] == "history_summarised"


async def test_a_long_summary_is_refused_unless_it_was_announced(state_dir: Path) -> None:
    agent = Agent("hybrid", state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 4)
        messages = summarised(agent, "Summary: " + OUTPUT * 3, 7)
        cause, param = await refusal(agent, daemon, messages)
        assert (cause, param) == ("history_summarised", "messages[1].content")
        await agent.send(daemon, messages, compact=True)
        assert await outcome(daemon) == ("compacted", "history_summarised")


# --- an agent that trims from the front


@each_kind
async def test_trimming_from_the_front_reads_everything_again_each_time(
    state_dir: Path, kind: str
) -> None:
    agent = Agent(kind, state_dir)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 5)
        for _ in range(2):
            trimmed = [agent.messages[0], *agent.messages[5:], asks("Go on.")]
            reply = await agent.send(daemon, trimmed)
            assert await outcome(daemon) == ("forked", "front_trimmed")
            prefilled, cause = cost(reply)
            assert cause == "front_trimmed"
            left = reply.report.prompt_tokens - len(FRONT)
            assert left - 60 <= prefilled <= left


async def test_trimming_from_the_front_is_refused_where_a_person_said_so(state_dir: Path) -> None:
    agent = Agent("hybrid", state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 5)
        trimmed = [agent.messages[0], *agent.messages[5:], asks("Go on.")]
        assert (await refusal(agent, daemon, trimmed))[0] == "front_trimmed"
        short = [agent.messages[0], *agent.messages[-4:], asks("Go on.")]
        await agent.send(daemon, short)
        assert await outcome(daemon) == ("compacted", "front_trimmed")


# --- coding agents


def marked(messages: list[Message], at: int) -> list[Message]:
    """Message `at` as a list of parts with a marker, as Claude Code has the last ones."""
    part = {"type": "text", "text": messages[at]["content"], "cache_control": {"type": "ephemeral"}}
    return [{**m, "content": [part]} if m is messages[at] else m for m in messages]


@each_kind
async def test_markers_that_move_and_other_shapes_cost_nothing(state_dir: Path, kind: str) -> None:
    """Parts one turn, a string the next; a header line for billing that is never the same."""
    agent = Agent(kind, state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        for number in range(4):
            billing = f"x-anthropic-billing-header: cc_version=2.1; cch={number:05x};\n"
            plain = [{"role": "system", "content": billing + FRONT}, *agent.messages[1:]]
            asked = [*plain, asks(f"Question {number}?")]
            before = agent.last and agent.standing
            reply = await agent.send(daemon, marked(asked, -1))
            if before:
                check_appended(agent, before, reply)
                assert reply.report.prefilled_tokens == len("Question 0?") + ROUND
            agent.messages = [*asked, {"role": "assistant", "content": reply.text}]


@each_kind
async def test_a_title_request_at_the_same_time_disturbs_nothing(
    state_dir: Path, kind: str
) -> None:
    """Another system prompt, no tools, under the same id."""
    agent = Agent(kind, state_dir, named=True, tools=TOOLS)
    titles = [{"role": "system", "content": "Give a title of five words."}, asks("Fix the bug.")]
    async with agent.rig.daemon() as daemon:
        agent.script.append("A title.")
        title, first = await asyncio.gather(
            daemon.say("agent", titles, max_tokens=None), agent.says(daemon, "Fix the bug.")
        )
        assert title.report.miss is None
        assert first.report.miss is None
        assert {title.report.turn, first.report.turn} == {1, 2}
        check_appended(agent, agent.standing, await agent.says(daemon, "Go on."))
        assert await daemon.lifecycle.explain("agent") == ()
        assert (await daemon.lifecycle.turns("agent"))[-1].line == "main"


def opening(folder: str) -> list[Message]:
    context = f"Today is 29 November. The platform is linux. The folder has:\n{folder}"
    thanks = {"role": "assistant", "content": "Got it. Thanks for the context!"}
    return [{"role": "system", "content": FRONT}, asks(context), thanks]


@each_kind
async def test_an_opening_exchange_belongs_to_the_talk(state_dir: Path, kind: str) -> None:
    """The model never gave that reply. The next chat in the same folder reads its question only."""
    agent = Agent(kind, state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        agent.messages = opening("a.py\nb.py")
        await agent.says(daemon, "Explain a.py.")
        check_appended(agent, agent.standing, await agent.says(daemon, "Go on."))
        agent.session, agent.messages = "next", opening("a.py\nb.py")
        reply = await agent.says(daemon, "What is b.py?")
        assert reply.report.prefilled_tokens <= len("What is b.py?") + ROUND
        agent.session, agent.messages = "later", opening("a.py\nc.py")
        reply = await agent.says(daemon, "What is c.py?")
        whole = reply.report.prompt_tokens
        assert reply.report.prefilled_tokens <= whole - len(FRONT)
        assert reply.report.miss is None


async def test_an_opening_exchange_that_changes_within_a_talk_is_a_rewrite(
    state_dir: Path,
) -> None:
    agent = Agent("hybrid", state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        agent.messages = opening("a.py\nb.py")
        for number in range(6):
            await agent.says(daemon, f"Explain line {number}.")
        changed = [*opening("a.py\nc.py"), *agent.messages[3:], asks("Go on.")]
        assert await refusal(agent, daemon, changed) == ("history_edited", "messages[1].content")


async def test_a_person_lets_the_rewrites_of_one_session_through(state_dir: Path) -> None:
    agent = Agent("hybrid", state_dir, named=True)
    async with agent.rig.daemon() as daemon:
        await agent.works(daemon, 5)
        trimmed = [agent.messages[0], *agent.messages[5:], asks("Go on.")]
        await refusal(agent, daemon, trimmed)
        await daemon.lifecycle.update("agent", SessionChange("fork"))
        await agent.send(daemon, trimmed)
        assert await outcome(daemon) == ("forked", "front_trimmed")


def test_the_front_is_what_the_numbers_say() -> None:
    assert len(prompt_of([{"role": "system", "content": FRONT}, asks("")])) < len(FRONT) + 60
