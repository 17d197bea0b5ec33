"""A sub-agent's session goes on from its parent's turns, and shares what both begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessiond.engine.memory import common_prefix
from sessiond.errors import ContextLengthExceeded, SessionNotFound
from sessiond.sessions.turn import SessionChange
from tests.rig import Daemon, Reply
from tests.sessions.kinds import CONTRASTS, KINDS, Messages, chat, prompt_of, rig_of
from tests.sessions.talk import Talk

each_kind = pytest.mark.parametrize("kind", KINDS)
each_contrast = pytest.mark.parametrize("kind", CONTRASTS)
THOUGHT = "<think>\nLet me see: one, two, three.\n</think>\n\n"
SHOWN = "An answer."


def source(kind: str) -> str:
    """A recurrent state has no cells: it comes from the ring, where snapshots are nobody's own."""
    return "resident" if kind == "recurrent" else "fork"


async def thinking(daemon: Daemon, turns: int = 2) -> Messages:
    """A talk as its client has it: without the reasoning that the ledger keeps."""
    messages = chat()
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number}?"})
        await daemon.say("p", messages, max_tokens=200, named=False)
        messages.append({"role": "assistant", "content": SHOWN})
    return messages


def replying(kind: str, directory: Path, count: int = 8) -> Any:
    return rig_of(kind, directory, replies=[f"{THOUGHT}{SHOWN}"] * count)


async def sub_agent(daemon: Daemon, messages: Messages, *said: str, **options: Any) -> Reply:
    asked = [*messages, *({"role": "user", "content": text} for text in said)]
    options = {"max_tokens": 200, "named": False, "parent": "p", **options}
    return await daemon.say(options.pop("session", "p:s"), asked, **options)


@each_kind
async def test_with_the_same_front_only_what_comes_after_it_is_evaluated(
    state_dir: Path, kind: str
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind, session="p")
        await talk.turns(daemon, 2)
        asked = chat("Look into this, please.")
        report = (await sub_agent(daemon, asked)).report
        shared = common_prefix(prompt_of(asked), prompt_of(talk.messages))
        assert report.prefilled_tokens <= len(prompt_of(asked)) - shared + 1
        assert (report.source, report.turn, report.miss) == (source(kind), 1, None)


@each_kind
async def test_one_that_extends_the_talk_evaluates_its_own_tokens_only(
    state_dir: Path, kind: str
) -> None:
    """The reasoning of the replies is in the parent's tokens and in no transcript."""
    async with replying(kind, state_dir).daemon() as daemon:
        messages = await thinking(daemon)
        report = (await sub_agent(daemon, messages, "Look into this.")).report
        added = "\n<|im_start|>user\nLook into this.<|im_end|>\n<|im_start|>assistant\n"
        assert report.prefilled_tokens <= len(added.encode())
        assert report.cached_tokens > len(prompt_of(messages))
        assert (report.source, report.miss) == (source(kind), None)
        assert (report.session, report.turn) == ("p:s", 3)
        turns = await daemon.lifecycle.turns("p:s")
        assert [turn.turn for turn in turns] == [1, 2, 3]
        assert len(await daemon.lifecycle.turns("p")) == 2


@each_contrast
@pytest.mark.parametrize("between", ["nothing", "stop", "kill"])
async def test_it_goes_on_by_itself_also_after_a_restart(
    state_dir: Path, kind: str, between: str
) -> None:
    rig = replying(kind, state_dir)
    async with rig.daemon(kill=between == "kill") as daemon:
        messages = await thinking(daemon)
        await sub_agent(daemon, messages, "Look into this.")
        messages += chat("Look into this.", SHOWN, front="")
        if between == "nothing":
            report = (await sub_agent(daemon, messages, "And now?")).report
        else:
            await daemon.machine.saver.save_all()
    if between != "nothing":
        async with rig.daemon() as daemon:
            await daemon.lifecycle.delete("p")
            report = (await sub_agent(daemon, messages, "And now?", parent=None)).report
    assert (report.turn, report.miss) == (4, None)
    assert report.prefilled_tokens < 100
    assert report.cached_tokens > len(prompt_of(messages))


@each_contrast
async def test_one_that_branches_off_earlier_inherits_no_more_than_it_says(
    state_dir: Path, kind: str
) -> None:
    async with replying(kind, state_dir).daemon() as daemon:
        messages = await thinking(daemon, 3)
        aside = (await sub_agent(daemon, messages[:3], "Something else.")).report
        assert (aside.turn, aside.miss) == (2, None)
        assert len(await daemon.lifecycle.turns("p:s")) == 2


async def test_one_that_says_something_else_inherits_nothing(state_dir: Path) -> None:
    async with replying("hybrid", state_dir).daemon() as daemon:
        await thinking(daemon)
        other = (await sub_agent(daemon, chat(front="Explore. " * 30), "Go.")).report
        assert (other.turn, len(await daemon.lifecycle.turns("p:s"))) == (1, 1)
        stranger = (await sub_agent(daemon, [], "Go.", parent="nobody", session="q")).report
        assert stranger.turn == 1


async def test_a_session_that_exists_keeps_what_it_has(state_dir: Path) -> None:
    async with replying("hybrid", state_dir).daemon() as daemon:
        messages = await thinking(daemon)
        await daemon.lifecycle.create("p:s", SessionChange())
        report = (await sub_agent(daemon, messages, "Look into this.")).report
        assert report.turn == 1


async def test_a_refused_request_makes_no_session(state_dir: Path) -> None:
    rig = replying("hybrid", state_dir)
    async with rig.daemon() as daemon:
        messages = await thinking(daemon)
    rig.limit = 1500
    async with rig.daemon() as daemon:
        with pytest.raises(ContextLengthExceeded):
            await sub_agent(daemon, messages, "x" * 2000)
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.summary("p:s")
        assert (await sub_agent(daemon, messages, "Shorter.")).report.turn == 3


async def test_two_at_once_make_one_session(state_dir: Path) -> None:
    async with replying("attention", state_dir).daemon() as daemon:
        messages = await thinking(daemon)
        asked = [[*messages, {"role": "user", "content": text}] for text in ("One.", "Two.")]
        opened = [
            await daemon.open("p:s", one, max_tokens=200, named=False, parent="p") for one in asked
        ]
        for one in opened:
            assert [event async for event in one.events]
        turns = await daemon.lifecycle.turns("p:s")
        assert [(turn.turn, turn.parent) for turn in turns] == [(1, None), (2, 1), (3, 2), (4, 2)]
    async with replying("attention", state_dir).daemon() as daemon:
        assert len(await daemon.lifecycle.turns("p:s")) == 4


async def test_one_that_is_created_meanwhile_has_the_turns_too(state_dir: Path) -> None:
    replies = [f"{THOUGHT}{SHOWN}", f"{THOUGHT}{SHOWN}", "word " * 200]
    rig = rig_of("attention", state_dir, replies=replies)
    async with rig.daemon() as daemon:
        messages = await thinking(daemon)
        asked = [*messages, {"role": "user", "content": "Look into this."}]
        opened = await daemon.open("p:s", asked, max_tokens=2000, named=False, parent="p")
        events = aiter(opened.events)
        await anext(events)
        await daemon.lifecycle.create("p:s", SessionChange("fork"))
        assert [event async for event in events]
    async with rig.daemon() as daemon:
        assert [turn.turn for turn in await daemon.lifecycle.turns("p:s")] == [1, 2, 3]
