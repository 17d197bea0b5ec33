"""`kill -9` after an acknowledged turn: the ledger has it, and state on disk is young."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sessiond.engine.memory import Tokens
from sessiond.sessions import saver
from tests.rig import Daemon
from tests.sessions.kinds import CONTRASTS, KINDS, chat, control, prompt_of, rig_of
from tests.sessions.talk import Talk, checked

LONG = 4096


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kill_before_anything_was_saved_costs_prefill_only(
    state_dir: Path, kind: str
) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon(kill=True) as daemon:
        await talk.turns(daemon, 2)
    async with rig.daemon(kill=True) as daemon:
        assert len(await daemon.lifecycle.turns(talk.session)) == 2
        last = talk.replies[-1].report
        report = (await talk.say(daemon, "Still there?")).report
        assert (report.source, report.cached_tokens) == ("ledger", 0)
        assert report.miss is not None
        lost = last.prompt_tokens + last.completion_tokens - 1
        assert (report.miss.cause, report.miss.tokens) == ("not_saved", lost)
        again = (await talk.say(daemon, "And now?")).report
        assert again.miss is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kill_after_every_turn_loses_no_turn(state_dir: Path, kind: str) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    for turn in range(4):
        async with rig.daemon(kill=True) as daemon:
            await talk.turns(daemon, 1)
            assert [t.turn for t in await daemon.lifecycle.turns("talk")] == [*range(1, turn + 2)]
            if turn % 2:
                await daemon.machine.saver.save_all()
    said = [(m["role"], m["content"]) for m in talk.messages]
    async with rig.daemon(kill=True) as daemon:
        transcript = await daemon.lifecycle.transcript("talk")
        assert [(m.role, m.content) for m in transcript] == said


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kill_in_the_middle_of_a_turn_leaves_the_turns_before(
    state_dir: Path, kind: str
) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon(kill=True) as daemon:
        await talk.turns(daemon, 1)
        await daemon.machine.saver.save_all()
        asked = [*talk.messages, {"role": "user", "content": "Go on for ever."}]
        opened = await daemon.open("talk", asked, max_tokens=LONG, ignore_eos=True)
        await anext(opened.events)
    async with rig.daemon(kill=True) as daemon:
        assert len(await daemon.lifecycle.turns("talk")) == 1
        standing = talk.standing
        report = (await talk.say(daemon, "Go on for ever.")).report
        assert report.cached_tokens == standing


def reach(daemon: Daemon, tokens: Tokens) -> int:
    """How many of `tokens` could be landed on, from what is on disk."""
    stored, memory = daemon.machine.store.lookup(tokens), daemon.machine.memory
    if not memory.needs_snapshot:
        return stored.tokens
    cells = stored.tokens if memory.has_blocks else len(tokens)
    return max([s.position for s in stored.snapshots if s.position <= cells], default=0)


async def line(daemon: Daemon) -> Tokens:
    """The tokens in the context."""
    (view,) = [v for v in await daemon.machine.engine.views() if len(v.tokens)]
    return view.tokens.copy()


@pytest.mark.parametrize(
    ("kind", "by"), [*((kind, "age") for kind in KINDS), *((kind, "size") for kind in CONTRASTS)]
)
async def test_state_is_on_disk_under_uninterrupted_load(
    state_dir: Path, kind: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. One reply goes on and on; no idle moment comes.
    2. kill -9 once 50 tokens of the reply have been saved.
    Result: they are on disk, and so is the state before the reply.
    """
    monkeypatch.setattr(saver, "SETTLE_S", 0.02)
    monkeypatch.setattr(saver, "MAX_AGE_S", 0.05 if by == "age" else 3600.0)
    monkeypatch.setattr(saver, "MAX_TOKENS", 100 if by == "size" else 1 << 30)
    asked = chat("Go on for ever.")
    wanted = len(prompt_of(asked)) + 50
    async with rig_of(kind, state_dir).daemon(kill=True) as daemon:
        opened = await daemon.open("talk", asked, max_tokens=LONG, ignore_eos=True)
        async for _ in opened.events:
            tokens = await line(daemon)
            if reach(daemon, tokens) > wanted:
                break
    async with rig_of(kind, state_dir).daemon(kill=True) as daemon:
        assert reach(daemon, tokens) > wanted
        reply = await checked(daemon, kind, "talk", asked)
        assert reply.report.prefilled_tokens == 1


async def test_a_long_reply_keeps_the_snapshot_before_it(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States saved in the middle of a reply supersede one another, not those of turns."""
    monkeypatch.setattr(saver, "SETTLE_S", 0.01)
    monkeypatch.setattr(saver, "MAX_TOKENS", 50)
    rig = rig_of("recurrent", state_dir)
    asked = chat("Go on.", front="")
    async with rig.daemon() as daemon:
        opened = await daemon.open("talk", asked, max_tokens=1500, ignore_eos=True)
        async for _ in opened.events:
            await asyncio.sleep(0)
        await daemon.machine.saver.save_all()
        usage = daemon.machine.store.usage()
        assert usage.snapshots <= 4
    async with rig.daemon(kill=True) as daemon:
        reply = await daemon.say("talk", asked)
        assert reply.report.prefilled_tokens == 1
        assert reply.text == control("recurrent", asked)
