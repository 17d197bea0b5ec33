"""What people do with sessions: look, resume, park, remove, verify."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import common_prefix
from sessiond.errors import Conflict, SessionNotFound
from sessiond.sessions import deletion
from sessiond.sessions.turn import SessionChange
from sessiond.store.chain import BLOCK_TOKENS
from tests.rig import Daemon
from tests.sessions.kinds import KINDS, MEMORIES, chat, prompt_of, rig_of
from tests.sessions.talk import Talk, checked

each_kind = pytest.mark.parametrize("kind", KINDS)


async def test_unknown_names_are_said(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        life = daemon.lifecycle
        for asked in (
            life.summary("nobody"),
            life.update("nobody", SessionChange("fork")),
            life.delete("nobody"),
            life.resume("nobody"),
            life.park("nobody"),
            life.turns("nobody"),
            life.transcript("nobody"),
        ):
            with pytest.raises(SessionNotFound, match="nobody"):
                await asked


async def test_a_session_with_a_running_turn_is_left_alone(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk, other = Talk("attention"), Talk("attention", session="other")
        await talk.turns(daemon, 1)
        await other.turns(daemon, 1)
        asked = [*talk.messages, {"role": "user", "content": "Go on."}]
        opened = await daemon.open("talk", asked, max_tokens=500, ignore_eos=True)
        for verb in (daemon.lifecycle.delete, daemon.lifecycle.resume, daemon.lifecycle.park):
            with pytest.raises(Conflict, match="running"):
                await verb("talk")
        parking = asyncio.create_task(daemon.lifecycle.park("other"))
        assert len([event async for event in opened.events]) > 500
        assert (await parking).state == "disk"
        assert len(await daemon.lifecycle.turns("talk")) == 2


# --- park and resume


@each_kind
async def test_park_and_resume(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon(kill=True) as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 2)
        length, standing = len(prompt_of(talk.messages)), talk.standing
        assert (await daemon.lifecycle.summary("talk")).state == "resident"
        parked = await daemon.lifecycle.park("talk")
        assert (parked.state, parked.reason, parked.bytes > 0) == ("disk", "", True)
        assert parked.back_in_ms > 0
        assert await daemon.lifecycle.park("talk") == parked
        resumed = await daemon.lifecycle.resume("talk")
        in_ring = kind == "recurrent"
        expected = ("resident", 0) if in_ring else ("disk", standing)
        assert (resumed.source, resumed.restored_tokens) == expected
        assert (resumed.prefilled_tokens, resumed.miss) == (0, None)
        assert resumed.predicted_ms == pytest.approx(parked.back_in_ms)
        listed = await daemon.lifecycle.summary("talk")
        assert (listed.state, listed.back_in_ms) == ("resident", 0.0)
        assert length > listed.tokens >= standing
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.cached_tokens) == ("resident", standing)


@each_kind
async def test_resuming_what_is_resident_changes_nothing(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 2)
        before = [(v.seq, len(v.tokens)) for v in await daemon.machine.engine.views()]
        evaluated = daemon.evaluated
        resumed = await daemon.lifecycle.resume("talk")
        assert (resumed.source, resumed.prefilled_tokens) == ("resident", 0)
        after = [(v.seq, len(v.tokens)) for v in await daemon.machine.engine.views()]
        assert after == before
        assert daemon.evaluated == evaluated


@each_kind
async def test_a_resume_with_another_model_evaluates_the_ledger(state_dir: Path, kind: str) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    rig.fingerprint = Fingerprint("other model", "library", "settings")
    async with rig.daemon() as daemon:
        listed = await daemon.lifecycle.summary("talk")
        assert listed.state == "ledger"
        assert listed.reason == "model changed, waiting to be read again"
        resumed = await daemon.lifecycle.resume("talk")
        assert (resumed.source, resumed.restored_tokens) == ("ledger", 0)
        assert resumed.prefilled_tokens == resumed.tokens - 1 == daemon.evaluated
        assert resumed.miss is not None
        assert resumed.miss.cause == "model_changed"
        assert (await daemon.lifecycle.summary("talk")).state == "resident"
        report = (await talk.say(daemon, "And now?")).report
        assert (report.miss, report.cached_tokens) == (None, resumed.tokens - 1)


async def test_resuming_a_session_without_turns(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        made = await daemon.lifecycle.create("new", SessionChange())
        assert (made.turns, made.tokens, made.state) == (0, 0, "ledger")
        resumed = await daemon.lifecycle.resume("new")
        assert (resumed.source, resumed.tokens) == ("new", 0)
        assert (await daemon.lifecycle.park("new")).turns == 0
        with pytest.raises(Conflict):
            await daemon.lifecycle.create("new", SessionChange())
        assert (await daemon.say("new", chat("Hi"))).report.turn == 1


# --- looking


async def test_turns_and_transcript_tell_what_was_said(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid", state_dir), Talk("hybrid")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        side = talk.copy(1)
        await side.say(daemon, "Aside?", max_tokens=1)
        turns = await daemon.lifecycle.turns("talk")
        assert [(t.turn, t.parent, t.line) for t in turns] == [
            (1, None, "main"),
            (2, 1, "main"),
            (3, 1, "side"),
        ]
        assert [t.role_of_new for t in turns] == [("system", "user"), ("user",), ("user",)]
        for turn, reply in zip(turns, [*talk.replies, side.replies[-1]], strict=True):
            report = reply.report
            assert turn.cached_tokens + turn.prefilled_tokens == turn.prompt_tokens
            assert turn.prompt_tokens == report.prompt_tokens
            assert turn.prefilled_tokens == report.prefilled_tokens
            assert turn.completion_tokens == report.completion_tokens
            assert (turn.finish_reason, turn.source) == (report.finish_reason, report.source)
        transcript = await daemon.lifecycle.transcript("talk")
        said = [(m["role"], m["content"]) for m in talk.messages]
        assert [(m.role, m.content) for m in transcript] == said
        assert [m.turn for m in transcript] == [1, 1, 1, 2, 2]
        listed = await daemon.lifecycle.summary("talk")
        assert (listed.turns, listed.lines, listed.title) == (3, 2, "Question 1?")
        assert 0 < listed.hit_rate < 1
    async with rig.daemon() as daemon:
        assert await daemon.lifecycle.turns("talk") == turns
        assert await daemon.lifecycle.transcript("talk") == transcript


async def test_verify_counts_what_is_there_and_finds_what_is_not(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid", state_dir), Talk("hybrid")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        await daemon.machine.saver.save_all()
        report = await daemon.lifecycle.verify()
        usage = daemon.machine.store.usage()
        assert report.clean
        assert (report.blocks, report.snapshots) == (usage.blocks, usage.snapshots)
        assert (report.turns, report.unsaved_turns) == (2, 0)
        stored = daemon.machine.store.lookup(prompt_of(talk.messages))
        cache = rig.directory / "cache"
        flipped, gone = stored.blocks[0].key, stored.snapshots[-1].key
        (file,) = cache.rglob(flipped)
        file.write_bytes(file.read_bytes()[:-1] + b"\x00")
        next(cache.rglob(gone)).unlink()
        report = await daemon.lifecycle.verify()
        assert (report.damaged, report.missing) == ((flipped,), (gone,))
        assert not report.clean
        assert (await daemon.lifecycle.verify()).clean


# --- removing


async def known(daemon: Daemon, talk: Talk) -> tuple[int, int]:
    """How much of a talk's state is stored: tokens in blocks, snapshots."""
    await daemon.machine.saver.save_all()
    stored = daemon.machine.store.lookup(prompt_of(talk.messages))
    return stored.tokens, len(stored.snapshots)


@each_kind
async def test_a_removed_session_leaves_nothing(state_dir: Path, kind: str) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        assert await known(daemon, talk) != (0, 0)
        await daemon.lifecycle.delete("talk")
        assert await daemon.lifecycle.summaries() == []
        assert await known(daemon, talk) == (0, 0)
        assert daemon.machine.store.usage().bytes == 0
        assert not any(len(v.tokens) for v in await daemon.machine.engine.views())
    async with rig.daemon() as daemon:
        assert daemon.machine.store.usage().bytes == 0
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.transcript("talk")
        report = (await checked(daemon, kind, "talk", chat("Question 1?"))).report
        assert (report.turn, report.source, report.cached_tokens) == (1, "new", 0)


@each_kind
async def test_state_that_waits_to_be_written_goes_too(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        await Talk(kind).turns(daemon, 2)
        await daemon.lifecycle.delete("talk")
        await daemon.machine.saver.save_all()
        assert daemon.machine.store.usage().bytes == 0


@each_kind
@pytest.mark.parametrize("parked", [False, True])
async def test_what_others_can_use_stays(state_dir: Path, kind: str, parked: bool) -> None:
    """
    1. Two talks with the same first turn; one goes on after it. Both are on disk.
    2. The longer one is removed.
    Result: the other one goes on as if nothing had happened, also after a restart.
    """
    rig = rig_of(kind, state_dir)
    longer, other = Talk(kind, session="longer"), Talk(kind, session="other")
    async with rig.daemon() as daemon:
        await other.turns(daemon, 1)
        await longer.turns(daemon, 1)
        await longer.turns(daemon, 1)
        await daemon.machine.saver.save_all()
        if parked:
            await daemon.lifecycle.park("other")
            await daemon.lifecycle.park("longer")
        before = await known(daemon, other)
        await daemon.lifecycle.delete("longer")
        assert await known(daemon, other) == before
        tokens, _ = await known(daemon, longer)
        shared = common_prefix(prompt_of(longer.messages), prompt_of(other.messages))
        assert tokens < shared - shared % BLOCK_TOKENS + BLOCK_TOKENS
    async with rig.daemon() as daemon:
        standing = other.standing
        report = (await other.say(daemon, "Are you there?")).report
        assert report.miss is None
        assert report.cached_tokens >= standing


async def test_two_that_share_only_the_front_share_no_more(state_dir: Path) -> None:
    """A removed session's own tokens are gone even from the block in which both part ways."""
    async with rig_of("attention", state_dir).daemon() as daemon:
        one, other = Talk("attention", session="one"), Talk("attention", session="other")
        await one.say(daemon, "Something private of one: " + "x" * 300)
        await other.say(daemon, "Something else of the other: " + "y" * 300)
        before = await known(daemon, other)
        await daemon.lifecycle.delete("one")
        assert await known(daemon, other) == before
        tokens, _ = await known(daemon, one)
        assert tokens <= common_prefix(prompt_of(one.messages), prompt_of(other.messages))


@each_kind
async def test_of_a_removed_session_other_lines_go_on(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir, lines=3).daemon() as daemon:
        one, other = Talk(kind, session="one"), Talk(kind, session="other")
        await one.turns(daemon, 1)
        await other.turns(daemon, 1)
        await daemon.lifecycle.delete("one")
        standing = other.standing
        report = (await other.say(daemon, "Are you there?")).report
        assert (report.source, report.cached_tokens) == ("resident", standing)
        assert MEMORIES[kind].needs_snapshot or report.prefilled_tokens < 40


async def test_to_remove_one_of_many_reads_a_few(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. Thirty sessions with the same front, and a fork of the oldest one without state of its own.
    2. The oldest is removed, then its fork.
    Result: as few are read as always; the fork goes on with all it had, and then all of it is gone.
    """
    monkeypatch.setattr(deletion, "ASKED", 4)
    async with rig_of("attention", state_dir).daemon() as daemon:
        front = "A front that all of them have. " * 30
        for number in range(30):
            await daemon.say(f"s{number}", chat(f"I am {number}. " * 9, front=front), max_tokens=3)
        await daemon.lifecycle.fork("s0", "fork", None)
        await daemon.machine.saver.save_all()
        for number in range(30):
            await daemon.lifecycle.park(f"s{number}")
        register = daemon.lifecycle._register
        tree = await register.tree("fork")
        tokens = tree.path_tokens(tree.main_line(0) or 0)
        aged = replace(register["fork"], last_used=1.0)
        register._records["fork"] = aged
        others = [await register.tree(f"s{number}") for number in range(1, 30)]
        shared = max(common_prefix(tokens, other.path_tokens(1)) for other in others)
        before = daemon.machine.store.lookup(tokens)
        assert before.tokens >= len(tokens) - 1
        asked = Mock(wraps=register.glance)
        monkeypatch.setattr(register, "glance", asked)
        await daemon.lifecycle.delete("s0")
        names = [call.args[0] for call in asked.call_args_list if call.args[0] != "s0"]
        assert "fork" in names
        assert len(names) <= 2 * deletion.ASKED
        assert daemon.machine.store.lookup(tokens) == before
        await daemon.lifecycle.delete("fork")
        assert 0 < daemon.machine.store.lookup(tokens).tokens <= shared


async def test_a_session_whose_first_turn_runs_is_not_removed(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        opened = await daemon.open("new", chat("Hi"), max_tokens=40, ignore_eos=True)
        await anext(opened.events)
        with pytest.raises(Conflict, match="running"):
            await daemon.lifecycle.delete("new")
        async for _ in opened.events:
            pass
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.delete("never")
