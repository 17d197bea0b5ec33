"""State that another model or setting has left behind is made anew while nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessiond.engine.context import BatchRow, Context, Model
from sessiond.engine.fingerprint import Fingerprint
from sessiond.errors import StoreFull
from sessiond.sessions.overview import AT_ONCE
from sessiond.sessions.turn import SessionChange
from sessiond.sessions.warming import READING, WAITING, WEEK_S, Warming
from sessiond.store.store import Store
from tests.rig import Daemon, Rig
from tests.rig.rig import real
from tests.sessions.kinds import FRONT, KINDS, chat, prompt_of, rig_of
from tests.sessions.talk import Talk
from tests.sessions.test_misses import with_other_vocabulary

each_kind = pytest.mark.parametrize("kind", KINDS)
OTHER = Fingerprint("other model", "library", "settings")
SETTINGS = Fingerprint("model", "library", "other settings")
NEVER = 1e9
SOURCES = {"recurrent": "resident"}
"""A state that is in the ring, too, needs nothing of the disk where there are no blocks."""


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def changed(rig: Rig, to: Fingerprint = OTHER, *, after: float = 0.01, warm: int = 16) -> Rig:
    rig.fingerprint = to
    rig.limits = replace(rig.limits, warm_after=after, warm=warm)
    return rig


async def warmed(daemon: Daemon, sessions: int) -> None:
    warming = daemon.lifecycle._warming
    await until(lambda: warming.warmth.sessions >= sessions and not warming.active)


async def settled(daemon: Daemon) -> None:
    """Every session has been looked at."""
    warming = daemon.lifecycle._warming
    await until(lambda: not warming._waiting() and not warming.active)


class Pace:
    """Lets the engine evaluate batches one by one, from the start on. `first` has the position of
    the first token of each: the last may be one that is held up.
    """

    def __init__(self, rig: Rig) -> None:
        self.first: list[int] = []
        self.steps = threading.Semaphore(0)
        self.free = False
        open_ = rig.open_engine

        def paced() -> tuple[Model, Context]:
            model, context = open_()
            decode = context.decode_rows

            def decode_rows(rows: Sequence[BatchRow]) -> None:
                self.first.append(rows[0].position)
                assert self.free or self.steps.acquire(timeout=20)
                decode(rows)

            context.decode_rows = decode_rows  # type: ignore[method-assign]
            return model, context

        rig.open_engine = paced

    async def batches(self, count: int) -> None:
        """So many are evaluated, and the next one has begun."""
        await until(lambda: len(self.first) > 0)
        self.steps.release(count)
        await until(lambda: len(self.first) == count + 1)

    def go(self) -> None:
        self.free = True
        self.steps.release()


# --- what is made anew


@each_kind
@pytest.mark.parametrize("to", [OTHER, SETTINGS], ids=["model", "settings"])
async def test_a_warmed_session_goes_on_as_if_nothing_had_changed(
    state_dir: Path, kind: str, to: Fingerprint
) -> None:
    """
    1. Two turns; another model, or another setting.
    2. Nobody asks for anything; then a turn.
    Result: the state is on disk and not in the context; the turn evaluates its new tokens + 1.
    """
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    async with changed(rig, to).daemon() as daemon:
        await warmed(daemon, 1)
        tokens = daemon.evaluated
        assert all(len(view.tokens) == 0 for view in await daemon.machine.engine.views())
        (listed,) = await daemon.lifecycle.summaries()
        assert (listed.state, listed.reason) == ("disk", "")
        health = await daemon.lifecycle.health()
        assert (health.warming, health.warmed_sessions) == (0, 1)
        assert health.warmed_tokens == tokens == listed.tokens - 1
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.miss) == (SOURCES.get(kind, "disk"), None)
        assert report.cached_tokens == listed.tokens - 1


@each_kind
async def test_what_is_there_is_not_read_again(state_dir: Path, kind: str) -> None:
    """Neither of the same model, nor, after a restart, what was read again before it."""
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with changed(rig, rig.fingerprint).daemon() as daemon:
        await talk.turns(daemon, 2)
        evaluated = daemon.evaluated
        await settled(daemon)
        assert daemon.evaluated == evaluated
    async with changed(rig).daemon() as daemon:
        await warmed(daemon, 1)
    async with rig.daemon() as daemon:
        await settled(daemon)
        assert (daemon.evaluated, daemon.lifecycle._warming.warmth.sessions) == (0, 0)


@each_kind
async def test_with_another_tokenizer(state_dir: Path, kind: str) -> None:
    """It is rendered anew, once, and known to be there after a restart, too."""
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    with_other_vocabulary(rig, kind)
    async with changed(rig).daemon() as daemon:
        await warmed(daemon, 1)
        assert daemon.evaluated > 0
    async with rig.daemon() as daemon:
        await settled(daemon)
        assert daemon.evaluated == 0
        (listed,) = await daemon.lifecycle.summaries()
        assert (listed.state, listed.reason) == ("disk", "")
        asked = [*talk.messages, {"role": "user", "content": "And now?"}]
        report = (await daemon.say("talk", asked)).report
        assert report.source == "disk"
        assert report.prefilled_tokens <= len(prompt_of(chat("And now?", front=""))) + 2


async def test_whole_states(state_dir: Path) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    rig.whole = True
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
    async with changed(rig).daemon() as daemon:
        await warmed(daemon, 1)
        report = (await talk.say(daemon, "And now?")).report
        assert (report.source, report.miss) == ("disk", None)


async def test_a_real_model_with_other_kv_types(hybrid_path: Path, state_dir: Path) -> None:
    small = {"n_ctx": 1024, "n_batch": 64, "n_ubatch": 64}
    rig = Rig(state_dir, real(hybrid_path, **small))
    messages = chat("Hi", front=FRONT[:120])
    async with rig.daemon() as daemon:
        reply = await daemon.say("talk", messages, max_tokens=4)
        warm = await daemon.say("other", [*messages[:-1], {"role": "user", "content": "Ho"}])
    rig.open_engine = real(hybrid_path, type_k="q8_0", **small)
    async with changed(rig, SETTINGS).daemon() as daemon:
        await warmed(daemon, 2)
        messages += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": "And now?"},
        ]
        again = await daemon.say("talk", messages, max_tokens=4)
        assert (again.report.source, again.report.miss) == ("disk", None)
        standing = reply.report.prompt_tokens + reply.report.completion_tokens
        assert again.report.cached_tokens >= standing - 1
        assert warm.report.turn == 1


# --- which, and how many


async def asked_for(rig: Rig, *names: str) -> None:
    async with rig.daemon() as daemon:
        for name in names:
            await daemon.say(name, chat(name, front=f"You are {name}. " * 20), max_tokens=2)


async def test_pinned_ones_come_first_then_those_used_last(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    make = Warming._make

    async def noted(warming: Warming, candidate: Any, shop: Any) -> bool:
        order.append(candidate.record.name)
        return await make(warming, candidate, shop)

    rig = rig_of("attention", state_dir)
    await asked_for(rig, "one", "two", "three", "four")
    async with changed(rig, after=NEVER).daemon() as daemon:
        await daemon.lifecycle.update("two", SessionChange(pinned=True))
    monkeypatch.setattr(Warming, "_make", noted)
    async with changed(rig, warm=3).daemon() as daemon:
        await warmed(daemon, 3)
        await settled(daemon)
        assert order == ["two", "four", "three"]
        assert (await daemon.lifecycle.summary("one")).state == "ledger"


async def test_none_if_none_are_wanted_and_none_that_are_long_gone(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "old", "pinned")
    async with changed(rig, warm=0).daemon() as daemon:
        await daemon.lifecycle.update("pinned", SessionChange(pinned=True))
        await settled(daemon)
        (first, second) = await daemon.lifecycle.summaries()
        assert {first.reason, second.reason} == {"model changed"}
        assert daemon.evaluated == 0
    monkeypatch.setattr("sessiond.sessions.warming.WEEK_S", 0.0)
    async with changed(rig).daemon() as daemon:
        await settled(daemon)
        listed = {s.name: s.state for s in await daemon.lifecycle.summaries()}
        assert listed["pinned"] == "disk"
        assert daemon.lifecycle._warming.warmth.sessions == 1
    assert WEEK_S == 7 * 24 * 3600


async def test_the_list_says_what_is_done(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "one", "two")
    pace = Pace(rig)
    async with changed(rig).daemon() as daemon:
        await until(lambda: len(pace.first) > 0)
        listed = asyncio.create_task(daemon.lifecycle.summaries())
        await pace.batches(2)
        pace.steps.release()
        told = {s.name: s.reason for s in await listed}
        assert told == {
            "two": f"model changed, {READING}",
            "one": f"model changed, {WAITING}",
        }
        pace.go()
        await warmed(daemon, 2)
        assert [s.reason for s in await daemon.lifecycle.summaries()] == ["", ""]


async def test_one_that_cannot_be_read_is_passed_over_and_said_once(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has become too long for the context; once, however often the others are looked at."""
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await daemon.say("short", "Hi", max_tokens=2)
        await daemon.say("long", chat("Hi"), max_tokens=2)
    rig.limit = 200
    async with changed(rig).daemon() as daemon:
        await warmed(daemon, 1)
        await settled(daemon)
        await asyncio.sleep(0.2)
        failures = [r for r in caplog.records if "could not be read again" in r.message]
        assert len(failures) == 1
        assert "long" not in failures[0].message.replace("too long", "")
        listed = {s.name: s.reason for s in await daemon.lifecycle.summaries()}
        assert listed == {"short": "", "long": "model changed"}


# --- somebody comes


@each_kind
async def test_a_turn_ends_it_at_the_next_step_and_it_goes_on_later(
    state_dir: Path, kind: str
) -> None:
    """
    1. A long session is being read again, two steps of it are done.
    2. A turn of another session comes; then nobody.
    Result: the turn runs next; nothing that was read is read twice.
    """
    rig, talk = rig_of(kind, state_dir, lines=1), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 3)
        length = talk.standing
    pace = Pace(rig)
    async with changed(rig).daemon() as daemon:
        await pace.batches(2)
        turn = asyncio.create_task(daemon.say("other", chat("Hi", front="Short."), max_tokens=2))
        await until(lambda: daemon.lifecycle._waiting > 0)
        pace.go()
        assert (await turn).report.miss is None
        assert pace.first[:3] == [0, 64, 128]
        assert pace.first[3] < 64
        await warmed(daemon, 1)
        assert daemon.lifecycle._warming.warmth.sessions == 1
        assert daemon.lifecycle._warming.warmth.tokens <= length
        report = (await talk.say(daemon, "And now?")).report
        assert (report.miss, report.cached_tokens in (length - 1, length)) == (None, True)


@each_kind
async def test_its_own_turn_goes_on_from_what_was_read(state_dir: Path, kind: str) -> None:
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 3)
    pace = Pace(rig)
    async with changed(rig).daemon() as daemon:
        await pace.batches(2)
        asked = [*talk.messages, {"role": "user", "content": "And now?"}]
        turn = asyncio.create_task(daemon.say("talk", asked))
        await until(lambda: daemon.lifecycle._waiting > 0)
        pace.go()
        assert (await turn).report.cached_tokens == 192
        assert pace.first[:4] == [0, 64, 128, 192]


@pytest.mark.parametrize("what", ["removed", "parked", "resumed"])
async def test_it_may_be_removed_or_asked_for_meanwhile(state_dir: Path, what: str) -> None:
    rig = rig_of("hybrid", state_dir)
    await asked_for(rig, "talk")
    pace = Pace(rig)
    async with changed(rig).daemon() as daemon:
        life = daemon.lifecycle
        await until(lambda: len(pace.first) > 0)
        works = {"removed": life.delete, "parked": life.park, "resumed": life.resume}
        work = asyncio.create_task(works[what]("talk"))  # type: ignore[arg-type]
        await until(lambda: life._warming._asked.is_set())
        pace.go()
        await work
        await settled(daemon)
        assert not life._warming.active
        if what == "removed":
            assert await life.summaries() == []
        else:
            assert (await life.summary("talk")).reason == ""


async def test_the_model_may_leave_in_the_middle(state_dir: Path) -> None:
    """What was read is saved, and the rest is read when the model is there again."""
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await daemon.say("talk", chat("Hi"), max_tokens=2)
    pace = Pace(rig)
    async with changed(rig).daemon() as daemon:
        host = daemon.lifecycle._host
        await pace.batches(2)
        host.unload()
        pace.go()
        await host.unloaded()
        read = daemon.evaluated
        assert 0 < read
        await daemon.lifecycle.ready()
        await warmed(daemon, 1)
        (listed,) = await daemon.lifecycle.summaries()
        assert (listed.reason, daemon.evaluated) == ("", listed.tokens - 1)


async def test_a_stop_in_the_middle(state_dir: Path) -> None:
    rig = rig_of("hybrid", state_dir)
    await asked_for(rig, "talk")
    pace, daemon = Pace(rig), Daemon(changed(rig))
    await daemon.start()
    await until(lambda: len(pace.first) > 0)
    stopping = asyncio.create_task(daemon.stop())
    await until(lambda: daemon.lifecycle._draining.is_set())
    pace.go()
    await stopping


async def test_it_waits_until_nobody_has_asked_for_a_while(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "talk")
    async with changed(rig, after=NEVER).daemon() as daemon:
        await asyncio.sleep(0.2)
        assert (daemon.evaluated, daemon.lifecycle._warming.active) == (0, False)
        assert (await daemon.lifecycle.health()).warming == 0


@pytest.mark.parametrize("unloaded", [False, True])
async def test_who_was_not_looked_at_does_not_wait(state_dir: Path, unloaded: bool) -> None:
    """Result: a start with the same model counts nobody, in memory and out of it."""
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "one", "two")
    async with changed(rig, rig.fingerprint, after=NEVER).daemon() as daemon:
        if unloaded:
            daemon.lifecycle._host.unload()
            await daemon.lifecycle._host.unloaded()
        assert len(daemon.lifecycle._warming._waiting()) == 2
        assert (await daemon.lifecycle.health()).warming == 0


async def test_who_is_known_to_lack_its_state_waits(state_dir: Path) -> None:
    """
    1. Three sessions; the state of one is there under the other model.
    2. The engine stands still at the first batch of another.
    Result: two wait, and once one of them was used, which makes its state, one.
    """
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "one", "two", "three")
    async with changed(rig, warm=1).daemon() as daemon:
        await warmed(daemon, 1)
    pace = Pace(rig)
    async with changed(rig).daemon() as daemon:
        warming = daemon.lifecycle._warming
        await until(lambda: len(pace.first) > 0)
        assert (warming.warmth.waiting, warming.active) == (2, True)
        assert [r.name for r in warming._waiting()] == ["two", "one"]
        used = daemon.lifecycle._register["one"]
        await daemon.lifecycle._register.change("one", last_used=used.last_used + 1)
        assert warming.warmth.waiting == 1
        pace.go()
        await settled(daemon)
        assert warming.warmth.waiting == 0


# --- another model than the one that was there


async def test_another_model_after_an_unloading(state_dir: Path) -> None:
    """What was made anew for one model says nothing of the next one."""
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "talk")
    async with changed(rig).daemon() as daemon:
        await warmed(daemon, 1)
        evaluated = daemon.evaluated
        daemon.lifecycle._host.unload()
        await daemon.lifecycle._host.unloaded()
        rig.fingerprint = SETTINGS
        await daemon.lifecycle.ready()
        await warmed(daemon, 2)
        await settled(daemon)
        (listed,) = await daemon.lifecycle.summaries()
        assert (listed.state, listed.reason) == ("disk", "")
        assert daemon.evaluated == 2 * evaluated


async def test_the_list_is_right_of_all_that_were_made_anew(state_dir: Path) -> None:
    """
    1. More sessions than one list looks up; another model. They are listed.
    2. All are made anew; listed once more.
    Result: of each the list says that it is on disk. The same after another start.
    """
    rig = rig_of("attention", state_dir)
    names = [f"talk {number}" for number in range(AT_ONCE + 8)]
    await asked_for(rig, *names)
    async with changed(rig, after=NEVER).daemon() as daemon:
        for _ in range(3):
            listed = await daemon.lifecycle.summaries()
        assert {s.state for s in listed} == {"ledger"}
        daemon.lifecycle._limits = replace(daemon.lifecycle._limits, warm=len(names))
        machine = daemon.machine
        chore = asyncio.create_task(
            daemon.lifecycle._warming.watch(
                daemon.lifecycle._workshop, lambda: 1.0, 0.0, daemon.lifecycle._host.calm
            )
        )
        await warmed(daemon, len(names))
        await settled(daemon)
        assert machine is daemon.machine
        listed = await daemon.lifecycle.summaries()
        assert {(s.state, s.reason) for s in listed} == {("disk", "")}
        chore.cancel()


# --- room


async def test_it_goes_on_when_there_is_room_again(state_dir: Path) -> None:
    """
    1. Another model; no room for what was there with the first one.
    2. The quota is raised, as by SIGHUP.
    Result: the session is read again, with nobody asking for anything.
    """
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "old")
    async with changed(rig, after=NEVER).daemon() as daemon:
        await daemon.say("new", chat("Another", front="Briefly."), max_tokens=2)
        await daemon.lifecycle.park("new")
        await without_state_of_the_old_model(daemon)
        rig.quota = daemon.machine.store.usage().bytes + 200
    async with changed(rig).daemon() as daemon:
        warming = daemon.lifecycle._warming
        await until(lambda: warming._full)
        assert daemon.evaluated == 0
        await daemon.lifecycle.resize(lambda used: (1 << 30, 0))
        await warmed(daemon, 1)
        assert (await daemon.lifecycle.summary("old")).state == "disk"


async def without_state_of_the_old_model(daemon: Daemon) -> None:
    tree = await daemon.lifecycle._register.tree("old")
    store = daemon.machine.store.under(Fingerprint("model", "library", "settings").value)
    gone = store.lookup(tree.path_tokens(1)).blocks
    assert store.drop([block.key for block in gone]) == len(gone) > 0


@pytest.mark.parametrize("room", ["of the model that is gone", "none"])
async def test_it_takes_no_room_from_newer_state(state_dir: Path, room: str) -> None:
    """
    1. A session of a model that is gone; one of this model; the store is full.
    2. Nobody asks for anything.
    Result: the newer state is all there. The old session is read again only where the state that
    it had with the old model leaves room for that.
    """
    rig = rig_of("attention", state_dir)
    await asked_for(rig, "old")
    async with changed(rig, after=NEVER).daemon() as daemon:
        asked = chat("Another", front="Briefly.")
        newer = (await daemon.say("new", asked, max_tokens=2)).report.prompt_tokens
        await daemon.lifecycle.park("new")
        if room == "none":
            await without_state_of_the_old_model(daemon)
        rig.quota = daemon.machine.store.usage().bytes + 200
    async with changed(rig).daemon() as daemon:
        warming = daemon.lifecycle._warming
        await until(lambda: warming._full or warming.warmth.sessions == 1)
        assert warming._full == (room == "none")
        tree = await daemon.lifecycle._register.tree("new")
        assert daemon.machine.store.lookup(tree.path_tokens(1)).tokens >= newer
        listed = {s.name: s.state for s in await daemon.lifecycle.summaries()}
        assert listed == {"new": "disk", "old": "ledger" if room == "none" else "disk"}


async def test_sparing_evicts_only_other_fingerprints(tmp_path: Path) -> None:
    import numpy as np

    def opened(fingerprint: str) -> Store:
        return Store(
            tmp_path / "cache",
            tmp_path / "index.sqlite",
            fingerprint=fingerprint,
            quota=6000,
            keep_free=0,
        )

    old = opened("old")
    old.put_block(np.arange(10, dtype=np.int32), 0, bytes(1500))
    new = old.under("new")
    new.put_block(np.arange(20, dtype=np.int32), 0, bytes(1500))
    room = new.room()
    assert room >= 1500
    with new.sparing():
        new.put_block(np.arange(30, dtype=np.int32) + 5, 0, bytes(2500))
        with pytest.raises(StoreFull):
            new.put_block(np.arange(40, dtype=np.int32) + 9, 0, bytes(2500))
    assert old.lookup(np.arange(10, dtype=np.int32)).tokens == 0
    assert new.lookup(np.arange(20, dtype=np.int32)).tokens == 20
    new.put_block(np.arange(40, dtype=np.int32) + 9, 0, bytes(2500))
    assert new.lookup(np.arange(20, dtype=np.int32)).tokens == 0
    new.close()
