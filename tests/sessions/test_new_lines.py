"""What begins anew or goes back is never refused, and the main line goes on as if nothing was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Daemon, Reply
from tests.sessions.agents import Agent, Fields, agent_rig, tool

pytestmark = pytest.mark.parametrize("kind", ["attention", "hybrid"])
SUMMARISER = "You write summaries. Leave nothing out that matters and be short about the rest."
OTHER_SYSTEM = "Explore the folder and report; never write to it. One report is enough."
FOUR = ("What is in main.py?", "Which is longest?", "And then?", "And after that?")
Line = Callable[[Daemon, Agent], Awaitable[object]]


def says(text: str, role: str = "user") -> Fields:
    return {"role": role, "content": text}


async def aside(daemon: Daemon, *messages: Fields, tools: Any = ()) -> Reply:
    reply = await daemon.say("talk", messages, tools=tools)
    assert reply.report.miss is None, reply.report.miss
    return reply


async def title(daemon: Daemon, agent: Agent) -> None:
    await aside(daemon, says("You make titles.", "system"), says(FOUR[0]))


async def title_with_history(daemon: Daemon, agent: Agent) -> None:
    """Replies and all, as far as a title needs it; and once more when the talk has gone on."""
    for part in (slice(1, 7), slice(5, 9)):
        told = [message for message in agent.messages[part] if message["content"]]
        await aside(daemon, says(SUMMARISER, "system"), *told, says("A title, please."))


async def compaction_request(daemon: Daemon, agent: Agent) -> None:
    """All of it with another system prompt and no tools; twice, as after a failure."""
    told = [says(SUMMARISER, "system"), *agent.messages[1:], says("Sum up.")]
    await aside(daemon, *told)
    again = await aside(daemon, *told)
    assert again.report.prefilled_tokens == 1
    await aside(daemon, *told[:-1], says("Sum up in one line."))


async def clear(daemon: Daemon, agent: Agent) -> None:
    await begun(daemon, agent, "Something else altogether.")


async def begun(daemon: Daemon, agent: Agent, *asked: str) -> None:
    other = Agent(messages=agent.messages[:1], tools=agent.tools)
    for text in asked:
        await other.ask(daemon, text)


async def same_first_words(daemon: Daemon, agent: Agent) -> None:
    """A second agent in the same session, which may be told the same."""
    await begun(daemon, agent, FOUR[0], "Another way from here.", "And on.")


async def sub_agent(daemon: Daemon, agent: Agent) -> None:
    system, task = says(OTHER_SYSTEM, "system"), says("Find all tests.")
    first = await aside(daemon, system, task, tools=[tool("find")])
    told = [system, task, says(first.text, "assistant"), says("Go on.")]
    await aside(daemon, *told, tools=[tool("find")])


async def sub_agent_with_the_history(daemon: Daemon, agent: Agent) -> None:
    """Another agent that is told what was said to the first."""
    told = [says(OTHER_SYSTEM, "system"), *agent.messages[1:], says("Now explore.")]
    await aside(daemon, *told, tools=[tool("find")])


async def fork_of_the_agent(daemon: Daemon, agent: Agent) -> None:
    await aside(daemon, *agent.asking("You are a helper now: look at it alone."), tools=agent.tools)


async def regenerated(daemon: Daemon, agent: Agent) -> None:
    again = await aside(daemon, *agent.messages[:-1], tools=agent.tools)
    assert again.report.prefilled_tokens == 1


async def last_message_edited(daemon: Daemon, agent: Agent) -> None:
    told = [*agent.messages[:-2], says("And after that, in other words?")]
    await aside(daemon, *told, tools=agent.tools)


async def earlier_message_edited(daemon: Daemon, agent: Agent) -> None:
    told = [*agent.messages[:5], says("Which of them is the shortest?")]
    await aside(daemon, *told, tools=agent.tools)


async def first_message_edited(daemon: Daemon, agent: Agent) -> None:
    await aside(daemon, agent.messages[0], says("What is in test.py?"), tools=agent.tools)


async def last_exchange_dropped(daemon: Daemon, agent: Agent) -> None:
    await aside(daemon, *agent.messages[:-2], says("Forget that; go on."), tools=agent.tools)


async def branches(daemon: Daemon, agent: Agent) -> None:
    """Back and forth between two lines, and to the one that began as neither."""
    side = Agent(messages=agent.messages[:7], tools=agent.tools)
    await side.ask(daemon, "A side line?")
    main = Agent(messages=list(agent.messages), tools=agent.tools)
    await main.ask(daemon, "The main line again?")
    await side.ask(daemon, "And the side line?")
    await main.ask(daemon, "And the main line?")
    await aside(daemon, *side.messages[:9], says("A third one."), tools=agent.tools)


async def retried(daemon: Daemon, agent: Agent) -> None:
    """Requests that were answered before, the last and older ones."""
    for end in (-1, 7 - 1, 2):
        await aside(daemon, *agent.messages[:end], tools=agent.tools)


async def reply_seen_in_part(daemon: Daemon, agent: Agent) -> None:
    told = agent.messages[-1]["content"][:5].strip()
    messages = [*agent.messages[:-1], says(told, "assistant"), says("Go on where you were.")]
    reply = await daemon.say("talk", messages, tools=agent.tools)
    assert reply.report.prefilled_tokens < 60


async def reply_put_into_the_mouth(daemon: Daemon, agent: Agent) -> None:
    """A client that has another server's reply in its history."""
    messages = [*agent.messages[:7], says("Who?"), says("Another model.", "assistant"), says("So?")]
    await aside(daemon, *messages, tools=agent.tools)


async def common_reply_of_another_server(daemon: Daemon, agent: Agent) -> None:
    """Words that the model has used more than once prove nothing."""
    model: Any = daemon.machine.engine.model
    for text in ("Ready?", "Sure?"):
        model.replies.appendleft("Yes.")
        await agent.ask(daemon, text)
    messages = [*agent.messages[:7], says("Really?"), says("Yes.", "assistant"), says("So?")]
    await aside(daemon, *messages, tools=agent.tools)


LINES: list[Line] = [
    title,
    title_with_history,
    compaction_request,
    clear,
    same_first_words,
    sub_agent,
    sub_agent_with_the_history,
    fork_of_the_agent,
    regenerated,
    last_message_edited,
    earlier_message_edited,
    first_message_edited,
    last_exchange_dropped,
    branches,
    retried,
    reply_seen_in_part,
    reply_put_into_the_mouth,
    common_reply_of_another_server,
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.__name__)
async def test_a_new_line_is_never_refused_and_disturbs_nothing(
    state_dir: Path, kind: str, line: Line
) -> None:
    async with agent_rig(kind, state_dir, max_rewind=0).daemon(kill=True) as daemon:
        agent = Agent()
        await agent.work(daemon, FOUR)
        await line(daemon, agent)
        await agent.ask(daemon, "Back to work?")
        assert await daemon.lifecycle.explain("talk") == ()
        assert (await daemon.lifecycle.summary("talk")).lines >= 1


async def test_a_summary_takes_the_place_of_the_history_and_the_line_goes_on(
    state_dir: Path, kind: str
) -> None:
    """As pi compacts: asked for aside, then the first thing said, with the front as it was."""
    async with agent_rig(kind, state_dir, max_rewind=0).daemon(kill=True) as daemon:
        agent = Agent()
        await agent.work(daemon)
        await compaction_request(daemon, agent)
        front, tail = agent.messages[:1], agent.messages[-2:]
        short = Agent(messages=[*front, says("So far: all is well."), *tail], tools=agent.tools)
        await short.ask(daemon, "Go on?")
        assert [one.outcome for one in await daemon.lifecycle.explain("talk")] == ["compacted"]
        await short.ask(daemon, "And on?")
        edited = [*short.messages[:-2], says("And on, but otherwise?")]
        assert (await daemon.say("talk", edited, tools=short.tools)).report.miss is None
        await agent.ask(daemon, "And the old line?")
        assert len(await daemon.lifecycle.explain("talk")) == 1


async def test_a_compaction_is_the_main_line_until_the_old_one_is_gone_on_with(
    state_dir: Path, kind: str
) -> None:
    """The list and a resume are about what the agent talks on in; also after a restart."""
    rig = agent_rig(kind, state_dir, max_rewind=0)
    async with rig.daemon() as daemon:
        agent = Agent()
        await agent.work(daemon)
        front, tail = agent.messages[:1], agent.messages[-2:]
        short = Agent(messages=[*front, says("So far: all is well."), *tail], tools=agent.tools)
        await short.ask(daemon, "Go on?")
        summary = await daemon.lifecycle.summary("talk")
        assert len(daemon.lifecycle._register._trees["talk"].leaves()) > 1
        line = (await daemon.lifecycle.transcript("talk"))[1].content
        assert line == "So far: all is well."
    async with rig.daemon() as daemon:
        (listed,) = await daemon.lifecycle.summaries()
        assert listed.tokens == summary.tokens == (await daemon.lifecycle.summary("talk")).tokens
        assert (await daemon.lifecycle.resume("talk")).tokens == summary.tokens
        await agent.ask(daemon, "And the old line?")
        assert (await daemon.lifecycle.summary("talk")).tokens > summary.tokens
