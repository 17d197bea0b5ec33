"""A session goes into a file and comes back: all its turns, and with the state what was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path

import numpy as np
import pytest

from sessiond.engine.fingerprint import Fingerprint
from sessiond.errors import StoreFull
from sessiond.sessions.transfer.manifest import PART
from sessiond.sessions.turn import SessionChange, SessionSummary
from sessiond.store.store import Store
from tests.rig import Daemon, Rig
from tests.rig.rig import real
from tests.sessions.files import exported, members_of, sent
from tests.sessions.kinds import CONTRASTS, KINDS, chat, rig_of
from tests.sessions.talk import Talk, checked
from tests.sessions.turns import values

each_kind = pytest.mark.parametrize("kind", KINDS)


async def imported(daemon: Daemon, file: bytes, name: str | None = None) -> SessionSummary:
    report = await daemon.lifecycle.import_session(sent(file), name, str, state=True)
    return report.session


async def all_of(daemon: Daemon, name: str) -> list[dict[str, object]]:
    return [values(turn) for turn in await daemon.lifecycle._register.tree(name)]


async def held_talk(daemon: Daemon, kind: str) -> tuple[Talk, Talk]:
    """Two lines: three turns, and another second one with one more after it."""
    talk = Talk(kind)
    await talk.turns(daemon, 3)
    side = talk.copy(1)
    await side.say(daemon, "Something else altogether: " + "z" * 40)
    return talk, side


# --- there and back


@each_kind
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same daemon", "another daemon"])
async def test_with_state_only_new_tokens_are_evaluated(
    state_dir: Path, kind: str, elsewhere: bool
) -> None:
    """
    1. Two lines are exported, right after the last reply, and the session is removed.
    2. It is imported, there or where nothing was ever said.
    Result: the turns are the same to the letter, and each line goes on with what it had.
    """
    there, here = state_dir / "there", state_dir / "here"
    async with rig_of(kind, there).daemon() as daemon:
        talk, side = await held_talk(daemon, kind)
        file, before = await exported(daemon, "talk"), await all_of(daemon, "talk")
        created = (await daemon.lifecycle.summary("talk")).created
        await daemon.lifecycle.delete("talk")
        if not elsewhere:
            await _goes_on(daemon, file, before, created, talk, side)
    if elsewhere:
        async with rig_of(kind, here).daemon() as daemon:
            await _goes_on(daemon, file, before, created, talk, side)


async def _goes_on(
    daemon: Daemon,
    file: bytes,
    before: list[dict[str, object]],
    created: float,
    talk: Talk,
    side: Talk,
) -> None:
    evaluated = daemon.evaluated
    session = await imported(daemon, file)
    assert await all_of(daemon, "talk") == before
    assert (session.name, session.created, session.turns) == ("talk", created, 4)
    assert (session.state, session.reason, session.lines) == ("disk", "", 2)
    for line in (talk, side):
        standing = line.standing
        report = (await line.say(daemon, "Where were we?")).report
        assert (report.cached_tokens, report.miss) == (standing, None)
        assert report.source == "disk" or line is side
    assert daemon.evaluated - evaluated < 200
    again = talk.copy(1)
    forked = await daemon.lifecycle.fork("talk", "other", 1)
    assert forked.turns == 1
    again.session = "other"
    assert (await again.say(daemon, "Once more?")).report.turn == 2


@each_kind
async def test_without_state_all_is_evaluated_once(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk, _ = await held_talk(daemon, kind)
        before = await all_of(daemon, "talk")
        file = await exported(daemon, "talk", state=False)
        assert not [name for name, _ in members_of(file) if name.startswith("state/")]
        await daemon.lifecycle.delete("talk")
        report = await daemon.lifecycle.import_session(sent(file), None, str, state=True)
        assert (report.turns, report.state_taken, report.state_skipped) == (4, 0, 0)
        assert await all_of(daemon, "talk") == before
        first = (await talk.say(daemon, "Where were we?")).report
        assert (first.source, first.cached_tokens) == ("ledger", 0)
        second = (await talk.say(daemon, "And now?")).report
        assert (second.source, second.miss) == ("resident", None)


async def test_a_state_in_one_piece(state_dir: Path) -> None:
    rig = rig_of("hybrid", state_dir)
    rig.whole = True
    async with rig.daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 2)
        file = await exported(daemon, "talk")
        await daemon.lifecycle.delete("talk")
        assert (await imported(daemon, file)).state == "disk"
        standing = talk.standing
        report = (await talk.say(daemon, "Where were we?")).report
        assert (report.source, report.cached_tokens) == ("disk", standing)


async def test_a_real_hybrid_goes_on_from_a_file(state_dir: Path, hybrid_path: Path) -> None:
    """The logits of the next turn are those of the session that was never exported."""
    messages = chat("Tell me about whales.", front="You are terse. " * 90)
    rig = Rig(state_dir / "there", real(hybrid_path, n_ctx=2048))
    async with rig.daemon() as daemon:
        first = await daemon.say("talk", messages, max_tokens=8)
        file = await exported(daemon, "talk")
        asked = [
            *messages,
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And their food?"},
        ]
        never = await daemon.say("talk", asked, max_tokens=8)
    other = Rig(state_dir / "here", real(hybrid_path, n_ctx=2048))
    async with other.daemon() as daemon:
        await imported(daemon, file)
        again = await daemon.say("talk", asked, max_tokens=8)
    assert again.report.source == "disk"
    assert again.report.cached_tokens == never.report.cached_tokens
    assert again.text == never.text
    assert all((a == b).all() for a, b in zip(again.logits, never.logits, strict=True))


async def test_raw_text_and_an_empty_session(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.say("raw", "Once upon a time")
        before = await all_of(daemon, "raw")
        assert (await imported(daemon, await exported(daemon, "raw"), "again")).turns == 1
        assert await all_of(daemon, "again") == before
        await daemon.say("empty", chat("Hi"))
        await daemon.lifecycle.delete("empty")
        await daemon.lifecycle.create("empty", SessionChange(policy="fork"))
        copy = await imported(daemon, await exported(daemon, "empty"), "copy")
        assert (copy.turns, copy.policy) == (0, "fork")


# --- what is exported


async def test_a_running_session_exports_the_turns_committed_so_far(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 2)
        asked = [*talk.messages, {"role": "user", "content": "Go on."}]
        opened = await daemon.open("talk", asked, max_tokens=400, ignore_eos=True)
        await anext(opened.events)
        file = await exported(daemon, "talk")
        async for _ in opened.events:
            pass
        assert len(await daemon.lifecycle.turns("talk")) == 3
        assert (await imported(daemon, file, "copy")).turns == 2
        talk.session = "copy"
        standing = talk.standing
        assert (await talk.say(daemon, "And?")).report.cached_tokens == standing


async def test_what_only_another_session_said_stays_here(state_dir: Path) -> None:
    """A block that goes on with another session's words is not in the file: they would be, too."""
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 1)
        await daemon.lifecycle.fork("talk", "fork", None)
        fork = talk.copy()
        fork.session = "fork"
        await fork.say(daemon, "A secret.")
        await daemon.machine.saver.save_all()
        tree = await daemon.lifecycle._register.tree("talk")
        tokens = tree.path_tokens(1)
        stored = daemon.machine.store.lookup(tokens)
        assert stored.blocks[-1].length > stored.blocks[-1].usable
        states = [n for n, _ in members_of(await exported(daemon, "talk")) if "state/" in n]
        assert len(states) == len(stored.blocks) - 1


async def test_states_being_exported_are_not_evicted(state_dir: Path) -> None:
    """
    1. An export has begun; the store is filled to its quota with what others need.
    Result: all that the file was to have is in it.
    """
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await Talk("attention").turns(daemon, 3)
        undisturbed = await exported(daemon, "talk")
        file = await daemon.lifecycle.export("talk", state=True)
        found = [bytes(await anext(file.parts))]
        await daemon.lifecycle.park("talk")
        store = daemon.machine.store
        store._vault.quota = store.usage().bytes
        pushed = _push_out(store)
        found += [bytes(part) async for part in file.parts]
        again = b"".join(found)
        assert members_of(again)[1:-2] == members_of(undisturbed)[1:-2]
        assert pushed == 0
        assert _push_out(store) > 0


def _push_out(store: Store) -> int:
    """How many of ten states of another line found room."""
    put = 0
    for number in range(10):
        tokens = np.full(256, number, np.int32)
        with suppress(StoreFull):
            put += store.put_block(tokens, 0, bytes(10_000)) > 0
    return put


async def test_what_is_gone_from_the_store_is_left_out(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 2)
        await daemon.lifecycle.park("talk")
        blocks = sorted((state_dir / "cache" / "blocks").rglob("*"))
        file = await daemon.lifecycle.export("talk", state=True)
        for block in blocks:
            if block.is_file():
                block.write_bytes(b"x" * block.stat().st_size)
        whole = b"".join([bytes(part) async for part in file.parts])
        assert not [name for name, _ in members_of(whole) if name.startswith("state/")]
        assert (await imported(daemon, whole, "copy")).turns == 2


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_an_export_that_nobody_takes_lets_everything_go(state_dir: Path, taken: int) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 2)
        file = await daemon.lifecycle.export("talk", state=True)
        async with aclosing(file.parts) as parts:
            for _ in range(taken):
                await anext(parts)
            held = bool(daemon.machine.store._vault._leases)
        assert held == bool(taken)
        assert not daemon.machine.store._vault._leases


async def test_an_export_that_is_cancelled_while_it_reads(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 2)
        reading, go_on = asyncio.Event(), asyncio.Event()
        loop, read = asyncio.get_running_loop(), Store.read

        def slow(self: Store, key: str) -> memoryview:
            loop.call_soon_threadsafe(reading.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
            return read(self, key)

        monkeypatch.setattr(Store, "read", slow)
        task = asyncio.create_task(exported(daemon, "talk"))
        await asyncio.wait_for(reading.wait(), 20)
        assert daemon.machine.store._vault._leases
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait({task})
        assert task.cancelled()
        assert await _becomes(lambda: not daemon.machine.store._vault._leases)


async def _becomes(true: Callable[[], bool]) -> bool:
    for _ in range(2000):
        if true():
            return True
        await asyncio.sleep(0.005)
    return False


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_memory_has_one_part_at_a_time(state_dir: Path, kind: str) -> None:
    """However the file is cut into chunks on its way, and whatever it has."""
    async with rig_of(kind, state_dir).daemon() as daemon:
        await Talk(kind).turns(daemon, 3)
        file = await daemon.lifecycle.export("talk", state=True)
        sizes = [len(part) async for part in file.parts]
        assert max(sizes) <= PART
        whole = await exported(daemon, "talk")

        async def trickle() -> AsyncGenerator[bytes, None]:
            for at in range(0, len(whole), 777):
                yield whole[at : at + 777]

        report = await daemon.lifecycle.import_session(trickle(), "copy", str, state=True)
        assert report.turns == 3


# --- another model


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        (Fingerprint("other", "library", "settings"), "another model"),
        (Fingerprint("model", "other", "settings"), "other settings or another llama.cpp"),
    ],
)
async def test_state_of_another_model_is_skipped_and_said(
    state_dir: Path, marks: Fingerprint, why: str
) -> None:
    async with rig_of("hybrid", state_dir / "there").daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 2)
        file = await exported(daemon, "talk")
    states = [name for name, _ in members_of(file) if name.startswith("state/")]
    rig = rig_of("hybrid", state_dir / "here")
    rig.fingerprint = marks
    async with rig.daemon() as daemon:
        report = await daemon.lifecycle.import_session(sent(file), None, str, state=True)
        assert (report.state_taken, report.state_skipped) == (0, len(states))
        assert why in report.skipped_because
        assert daemon.machine.store.usage().blocks == 0
        said = (await talk.say(daemon, "And?")).report
        assert (said.source, said.prefilled_tokens) == ("ledger", said.prompt_tokens)


async def test_with_another_tokenizer_it_is_rendered_anew(state_dir: Path) -> None:
    async with rig_of("attention", state_dir / "there").daemon() as daemon:
        talk = Talk("attention")
        await talk.turns(daemon, 2)
        file = await exported(daemon, "talk")
    rig = rig_of("attention", state_dir / "here")
    rig.tokenizer, rig.fingerprint = "other", Fingerprint("other", "library", "settings")
    async with rig.daemon() as daemon:
        assert (await imported(daemon, file)).turns == 2
        reply = await checked(
            daemon, "attention", "talk", [*talk.messages, {"role": "user", "content": "And?"}]
        )
        assert (reply.report.turn, reply.report.source) == (3, "ledger")
