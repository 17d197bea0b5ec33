"""A session laid open: its pieces cover the line, and lie where the state really is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.memory import Memory, MemoryKind
from sessiond.errors import SessionNotFound
from sessiond.sessions import anatomy
from sessiond.sessions.anatomy import TURNS_SHOWN, Anatomy, Piece, SnapshotMark, marks, pieces
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import SessionChange
from sessiond.store.chain import BLOCK_TOKENS, Kind
from sessiond.store.found import Stored, StoredBlock, StoredSnapshot
from tests.rig import Daemon
from tests.sessions.kinds import FRONT, KINDS, MEMORIES, RENDERER, chat, rig_of
from tests.sessions.talk import Talk

ATTENTION = MEMORIES["attention"]
RECURRENT = MEMORIES["recurrent"]


def blocks(tokens: int) -> tuple[StoredBlock, ...]:
    starts = range(0, tokens, BLOCK_TOKENS)
    lengths = [min(BLOCK_TOKENS, tokens - start) for start in starts]
    return tuple(
        StoredBlock(f"b{start}", start, length, length, 10)
        for start, length in zip(starts, lengths, strict=True)
    )


def snapshots(*positions: int) -> list[StoredSnapshot]:
    return [StoredSnapshot(f"s{at}", at, 10, Kind.SNAPSHOT) for at in positions]


def laid(
    tokens: int,
    shared: int,
    stored: Stored,
    ring: Sequence[StoredSnapshot] = (),
    memory: Memory = ATTENTION,
    *,
    whole: bool = False,
) -> list[Piece]:
    return list(pieces(tokens, shared, stored, ring, memory, whole=whole))


def total(found: Sequence[Piece], where: str) -> int:
    return sum(piece.length for piece in found if piece.where == where)


def test_blocks_are_in_memory_on_disk_or_missing() -> None:
    assert laid(700, 300, Stored(blocks(512))) == [
        Piece(0, 256, "memory", True),
        Piece(256, 44, "memory", True),
        Piece(300, 212, "disk", True),
        Piece(512, 188, "missing", False),
    ]


def test_what_is_in_memory_only_is_told_apart() -> None:
    assert laid(400, 400, Stored(blocks(256))) == [
        Piece(0, 256, "memory", True),
        Piece(256, 144, "memory", False),
    ]


def test_without_blocks_a_snapshot_reaches_over_all_before_it() -> None:
    stored = Stored(snapshots=tuple(snapshots(100, 300)))
    assert laid(700, 50, stored, snapshots(200), RECURRENT) == [
        Piece(0, 200, "memory", True),
        Piece(200, 100, "disk", True),
        Piece(300, 400, "missing", False),
    ]


def test_states_kept_whole_are_no_blocks() -> None:
    whole = (StoredSnapshot("w", 600, 10, Kind.WHOLE),)
    assert laid(700, 0, Stored(blocks(512), whole), whole=True) == [
        Piece(0, 600, "disk", True),
        Piece(600, 100, "missing", False),
    ]


@given(
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.sampled_from([ATTENTION, RECURRENT]),
)
def test_pieces_cover_the_line_without_gap_or_overlap(
    tokens: int, shared: int, disk: int, memory: Memory
) -> None:
    shared, disk = min(shared, tokens), min(disk, tokens)
    stored = Stored(blocks(disk), tuple(snapshots(disk) if disk else ()))
    found = laid(tokens, shared, stored, memory=memory)
    assert sum(piece.length for piece in found) == tokens
    assert all(one.start + one.length == other.start for one, other in pairwise(found))
    assert all(piece.length > 0 for piece in found)
    assert total(found, "memory") == shared
    assert total(found, "disk") == max(0, disk - shared)
    if memory.has_blocks:
        assert all(
            piece.start // BLOCK_TOKENS == (piece.start + piece.length - 1) // BLOCK_TOKENS
            for piece in found
        )


def test_a_snapshot_at_several_places_is_one_mark() -> None:
    assert marks(300, snapshots(100, 300), snapshots(300, 200)) == (
        SnapshotMark(100, ("ring",)),
        SnapshotMark(200, ("disk",)),
        SnapshotMark(300, ("context", "ring", "disk")),
    )


async def looked(daemon: Daemon, name: str = "talk") -> Anatomy:
    await daemon.machine.checkpoints.collect()
    return await daemon.lifecycle.anatomy(name)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_talk_is_where_it_was_put(state_dir: Path, kind: str) -> None:
    """
    1. Three turns; then the session is parked.
    2. The daemon is stopped and started on an empty cache.
    Result: first its line is in memory, then on disk, then missing; it is always as long, begins
    with the same front, and tells the last turn as that was reported.
    """
    rig, talk = rig_of(kind, state_dir), Talk(kind)
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 3)
        last = talk.replies[-1].report
        warm = await looked(daemon)
        await daemon.lifecycle.park("talk")
        parked = await looked(daemon)
    for path in (state_dir / "cache", state_dir / "index.sqlite"):
        path.rename(path.with_suffix(".gone"))
    async with rig.daemon() as daemon:
        cold = await looked(daemon)
    tokens = last.prompt_tokens + last.completion_tokens
    assert (warm.in_context, total(warm.blocks, "memory")) == (talk.standing, talk.standing)
    assert parked.in_context == 0
    assert total(parked.blocks, "missing") <= 1, "but for a token that was never evaluated"
    assert total(cold.blocks, "missing") == tokens
    for found in (warm, parked, cold):
        assert found.known
        assert (found.session, found.tokens) == ("talk", tokens)
        assert sum(piece.length for piece in found.blocks) == tokens
        assert found.front == len(RENDERER.text(f"<|im_start|>system\n{FRONT}", True)) + OPENING
        assert found.last_turn is not None
        assert (found.last_turn.turn, found.last_turn.position) == (3, last.cached_tokens)
        assert (found.last_turn.source, found.last_turn.evaluated) == (
            last.source,
            last.prefilled_tokens,
        )
        assert [turn.turn for turn in found.last_turns] == [3, 2, 1]
    if not MEMORIES[kind].needs_snapshot:
        assert warm.snapshots == parked.snapshots == ()
        return
    assert [mark.position for mark in warm.snapshots if "context" in mark.where] == [talk.standing]
    assert all(mark.where[0] != "context" for mark in parked.snapshots)
    assert max(m.position for m in parked.snapshots if "disk" in m.where) == talk.standing
    assert cold.snapshots == ()


OPENING = len(RENDERER.text("<|im_end|>\n<|im_start|>user\n", False))
"""What the template has between the system prompt and the user's words."""


async def test_looking_changes_nothing(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid+swa", state_dir), Talk("hybrid+swa")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        first = await looked(daemon)
        evaluated, used = daemon.evaluated, daemon.machine.checkpoints.entries
        assert await looked(daemon) == first
        assert daemon.evaluated == evaluated
        assert daemon.machine.checkpoints.entries == used


async def test_a_session_without_turns_and_one_that_is_unknown(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.lifecycle.create("empty", SessionChange())
        found = await daemon.lifecycle.anatomy("empty")
        assert (found.tokens, found.blocks, found.last_turn, found.front) == (0, (), None, None)
        with pytest.raises(SessionNotFound):
            await daemon.lifecycle.anatomy("unknown")


async def test_a_front_that_two_sessions_share_is_in_memory_for_both(state_dir: Path) -> None:
    """
    1. One session talks and is parked; another begins with the same system prompt.
    Result: so much of the first one's line is in memory as they have in common.
    """
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.say("one", chat("Hello"))
        await daemon.lifecycle.park("one")
        await daemon.say("two", chat("Other"))
        found = await looked(daemon, "one")
    assert found.front is not None
    assert found.front <= found.in_context < found.tokens
    assert total(found.blocks, "memory") == found.in_context


async def test_a_line_is_walked_beside_the_loop(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have very many turns, and nobody else is to wait for them."""
    walked: set[bool] = set()

    class Walked(SessionTree):
        def add(self, turn: Turn) -> None:
            walked.add(threading.current_thread() is threading.main_thread())
            super().add(turn)

    talk = Talk("attention")
    async with rig_of("attention", state_dir).daemon() as daemon:
        await talk.turns(daemon, 2)
        monkeypatch.setattr(anatomy, "SessionTree", Walked)
        assert (await looked(daemon)).front is not None
    assert walked == {False}


async def test_raw_text_has_no_front(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await daemon.say("raw", "Once upon a time")
        assert (await looked(daemon, "raw")).front is None


async def test_few_of_many_turns_are_told(state_dir: Path) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, TURNS_SHOWN + 2)
        found = await looked(daemon)
    numbers = [turn.turn for turn in found.last_turns]
    assert numbers == list(range(TURNS_SHOWN + 2, 2, -1))


async def test_while_the_model_loads_the_line_is_told_without_its_state(state_dir: Path) -> None:
    rig, talk = rig_of("attention", state_dir), Talk("attention")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 1)
    loading = Daemon(rig)
    await loading.lifecycle._register.open()
    try:
        found = await loading.lifecycle.anatomy("talk")
        gauges = await loading.lifecycle.gauges()
    finally:
        await loading.lifecycle._register.close()
    assert (found.known, found.blocks, found.front) == (False, (), None)
    assert found.tokens > 0
    assert found.last_turn is not None
    assert (gauges.cells, gauges.ring) == (0, ())


async def test_a_model_that_has_left_memory_leaves_the_state_on_disk(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid+swa", state_dir), Talk("hybrid+swa")
    async with rig.daemon() as daemon:
        await talk.turns(daemon, 2)
        before = await looked(daemon)
        daemon.lifecycle._host.unload()
        await daemon.lifecycle._host.unloaded()
        found = await daemon.lifecycle.anatomy("talk")
    assert (found.known, found.in_context, found.front) == (True, 0, before.front)
    assert total(found.blocks, "disk") == talk.standing
    assert {place for mark in found.snapshots for place in mark.where} == {"disk"}


def test_memory_kinds_are_all_looked_at() -> None:
    assert {memory.kind for memory in MEMORIES.values()} == set(MemoryKind)


async def test_gauges_are_what_the_engine_and_the_ring_hold(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid+swa", state_dir), Talk("hybrid+swa")
    async with rig.daemon() as daemon:
        before = await daemon.lifecycle.gauges()
        await talk.turns(daemon, 2)
        await daemon.machine.checkpoints.collect()
        after = await daemon.lifecycle.gauges()
        ring = daemon.machine.checkpoints.entries
    assert (before.cells_used, before.ring) == (0, ())
    assert before.prefill_tokens_per_second is None
    assert (after.cells, after.cells_used) == (1 << 16, talk.standing)
    assert after.prefill_tokens_per_second is not None
    assert sum(one.entries for one in after.ring) == len(ring) > 0
    assert sum(one.bytes for one in after.ring) == sum(entry.bytes for entry in ring)
    assert after.ring[0].rank == "front"
