"""Invariant 2: a line that was parked, stopped or killed goes on to the last bit as if it was not.

And invariant 3's oracle: what is restored exports to the bytes that are stored.
"""

from __future__ import annotations

import numpy as np
import pytest

from sessiond.engine.core import EngineCore
from sessiond.store.chain import BLOCK_TOKENS
from tests.daemon.conftest import RigMaker
from tests.daemon.conversation import NAME, Conversation
from tests.daemon.replay import Journal, frozen, replayed, same_bits
from tests.daemon.stored_bytes import same_state
from tests.rig import Daemon, Reply, Rig

KINDS = ["attention", "swa", "hybrid", "recurrent"]

MANY = {"attention": 12, "swa": 12, "hybrid": 40, "recurrent": 40}
"""Turns: the first two are models of some size."""


async def uninterrupted(rig: Rig, turns: int, front: int = 20) -> tuple[Reply, int]:
    """The last of `turns` + 1 turns of a daemon that never stopped, and its talk's tokens."""
    talk = Conversation(front)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, turns)
        reply = await talk.turn(daemon)
    return reply, reply.report.prompt_tokens


@pytest.mark.parametrize(
    ("kind", "turns"), [(kind, turns) for kind in KINDS for turns in (1, 2, MANY[kind])]
)
async def test_after_a_stop_the_next_turn_is_bit_identical(
    rig_of: RigMaker, kind: str, turns: int
) -> None:
    """
    1. Some turns, SIGTERM, start, one more turn.
    2. The same talk in a daemon that never stopped.
    Result: only new tokens + 1 are evaluated, and every logit is the same. Beyond its window a
    sliding-window line lies in other cells after a restore, so there logits agree up to rounding;
    `test_the_state_is_that_of_a_run_that_never_stopped` compares the bytes instead.
    """
    talk, rig = Conversation(), rig_of(kind)
    async with rig.daemon() as daemon:
        last = (await talk.turns(daemon, turns))[-1]
        before = len(await daemon.lifecycle.transcript(NAME))
    async with rig.daemon() as daemon:
        assert len(await daemon.lifecycle.transcript(NAME)) == before == 1 + 2 * turns
        resumed = await talk.turn(daemon)
    expected, _ = await uninterrupted(rig_of(kind), turns)
    known = last.report.prompt_tokens + last.report.completion_tokens
    assert resumed.report.source == "disk"
    assert resumed.report.prefilled_tokens <= resumed.report.prompt_tokens - known + 1
    assert resumed.report.miss is None
    assert resumed.text == expected.text
    if kind != "swa" or turns < MANY[kind]:
        assert same_bits(resumed, expected)


@pytest.mark.parametrize("kind", KINDS)
async def test_after_park_and_resume_the_next_turn_is_bit_identical(
    rig_of: RigMaker, kind: str
) -> None:
    talk, rig = Conversation(), rig_of(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        assert (await daemon.lifecycle.park(NAME)).state == "disk"
        report = await daemon.lifecycle.resume(NAME)
        source = "resident" if kind == "recurrent" else "disk"  # all of it is in the ring
        assert (report.source, report.prefilled_tokens) == (source, 0)
        resumed = await talk.turn(daemon)
    expected, _ = await uninterrupted(rig_of(kind), 2)
    assert resumed.report.source == "resident"
    assert same_bits(resumed, expected)


async def test_a_session_longer_than_the_window_cache_goes_on(rig_of: RigMaker) -> None:
    """Gemma: window 512, 5 sequences and 32 tokens a batch make 2,592 window cells."""
    options = {"n_batch": 32, "n_ubatch": 32}
    rig, talk = rig_of("swa", **options), Conversation(front_words=700)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
        before = await state_bytes(daemon)
    async with rig.daemon() as daemon:
        await daemon.lifecycle.resume(NAME)
        assert (await state_bytes(daemon))[0] == before[0]
        resumed = await talk.turn(daemon)
    assert resumed.report.prompt_tokens > 512 * 5 + 32
    assert resumed.report.prefilled_tokens < 30


@pytest.mark.parametrize("kind", KINDS)
async def test_the_state_is_that_of_a_run_that_never_stopped(rig_of: RigMaker, kind: str) -> None:
    """
    1. Many turns with a restart in the middle, and as many without.
    Result: every block and the snapshot at the end are the same.
    """
    rig, talk, half = rig_of(kind), Conversation(), MANY[kind] // 2
    async with rig.daemon() as daemon:
        await talk.turns(daemon, half)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, half)
        interrupted = await state_bytes(daemon)
    control = Conversation()
    async with rig_of(kind).daemon() as daemon:
        await control.turns(daemon, 2 * half)
        expected = await state_bytes(daemon)
    assert control.messages == talk.messages
    assert interrupted[0] == expected[0]
    if kind != "swa":  # beyond its window a line's window cells stand in another order
        assert equal_states(interrupted, expected)


@pytest.mark.parametrize("kind", KINDS)
async def test_another_context_size_is_no_miss_and_bit_identical(
    rig_of: RigMaker, kind: str
) -> None:
    rig, talk = rig_of(kind), Conversation()
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    rig.open_engine = rig_of(kind, n_ctx=2048, lines=3).open_engine
    async with rig.daemon() as daemon:
        resumed = await talk.turn(daemon)
    expected, _ = await uninterrupted(rig_of(kind), 2)
    assert resumed.report.miss is None
    assert resumed.report.source == "disk"
    assert same_bits(resumed, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saved", [True, False])
async def test_after_a_kill_the_next_turn_equals_the_same_chunks(
    rig_of: RigMaker, kind: str, saved: bool
) -> None:
    """
    1. Two turns, saved or (the second) not; kill -9; start; one more turn.
    2. A fresh context evaluates exactly the chunks that made the state it went on from, and then
       the chunks of the last turn.
    Result: the ledger has both turns, and every logit is the same.
    """
    rig, talk = rig_of(kind), Conversation()
    first, second = Journal(), Journal()
    async with rig.daemon(kill=True) as daemon:
        first.watch(daemon)
        await talk.turn(daemon)
        await daemon.machine.saver.save_all()
        await talk.turn(daemon)
        if saved:
            await daemon.machine.saver.save_all()
    async with rig.daemon() as daemon:
        assert len(await daemon.lifecycle.transcript(NAME)) == 5
        second.watch(daemon)
        resumed = await talk.turn(daemon)
    went_on_from = resumed.report.cached_tokens
    assert went_on_from == resumed.report.restored_tokens > 0
    assert (resumed.report.miss is None) == saved
    control = await replayed(rig_of(kind), [*first.until(went_on_from), *second.calls])
    assert len(control) >= len(resumed.logits)
    tail = control[-len(resumed.logits) :]
    assert all(np.array_equal(a, b) for a, b in zip(tail, resumed.logits, strict=True))


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
async def test_restored_blocks_export_to_the_stored_bytes(rig_of: RigMaker, kind: str) -> None:
    rig, talk = rig_of(kind), Conversation(front_words=200)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    async with rig.daemon() as daemon:
        await daemon.lifecycle.resume(NAME)
        machine = daemon.machine
        (view,) = [v for v in await machine.engine.views() if len(v.tokens)]
        stored = machine.store.lookup(view.tokens)
        assert stored.tokens == len(view.tokens) > 2 * BLOCK_TOKENS
        for block in stored.blocks:
            exported = await machine.engine.call(
                lambda core, b=block: core.export_block(
                    view.seq, view.epoch, b.start, b.start + b.usable
                )
            )
            assert bytes(exported) == bytes(machine.store.read(block.key))


@pytest.mark.parametrize("kind", ["hybrid", "recurrent", "swa"])
async def test_a_restored_snapshot_exports_to_the_stored_bytes(rig_of: RigMaker, kind: str) -> None:
    rig, talk = rig_of(kind), Conversation()
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
    async with rig.daemon() as daemon:
        await daemon.lifecycle.resume(NAME)
        machine = daemon.machine
        (view,) = [v for v in await machine.engine.views() if len(v.tokens)]
        stored = machine.store.lookup(view.tokens)
        assert stored.snapshots[-1].position == len(view.tokens)
        stored_bytes = bytes(machine.store.read(stored.snapshots[-1].key))
        through_each_spare = await machine.engine.call(lambda core: frozen(core, view.seq))
        assert stored_bytes in through_each_spare


def equal_states(one: tuple[list[bytes], bytes], other: tuple[list[bytes], bytes]) -> bool:
    """Blocks to the byte; snapshots but for the id of the spare they were exported through."""
    return one[0] == other[0] and same_state(one[1], other[1])


async def state_bytes(daemon: Daemon) -> tuple[list[bytes], bytes]:
    """Blocks, and the snapshot (or nothing), of the one line in the context, as they are saved."""
    engine = daemon.machine.engine
    (view,) = [view for view in await engine.views() if len(view.tokens)]

    def export(core: EngineCore) -> tuple[list[bytes], bytes]:
        length, memory = len(view.tokens), core.context.memory
        starts = range(0, length, BLOCK_TOKENS) if memory.has_blocks else ()
        blocks = [
            bytes(core.codec.export_block(view.seq, at, min(at + BLOCK_TOKENS, length)))
            for at in starts
        ]
        return blocks, frozen(core, view.seq)[0] if memory.needs_snapshot else b""

    return await engine.call(export)
