"""What is written when, and what is not written twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection
from pathlib import Path

import pytest

from sessiond.engine.memory import Tokens
from sessiond.sessions import saver
from sessiond.store.chain import BLOCK_TOKENS
from sessiond.store.store import Store
from tests.rig import Daemon
from tests.sessions.kinds import KINDS, MEMORIES, prompt_of, rig_of
from tests.sessions.talk import Talk

each_kind = pytest.mark.parametrize("kind", KINDS)


async def written(daemon: Daemon) -> int:
    await daemon.machine.saver.save_all()
    return daemon.machine.store.usage().bytes


@each_kind
async def test_an_idle_moment_brings_everything_to_disk(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "SETTLE_S", 0.02)
    async with rig_of(kind, state_dir).daemon(kill=True) as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 1)
        tokens = prompt_of(talk.messages)
        for _ in range(500):
            stored = daemon.machine.store.lookup(tokens)
            cells = stored.tokens >= talk.standing or not MEMORIES[kind].has_blocks
            last = [s.position for s in stored.snapshots] if MEMORIES[kind].needs_snapshot else []
            if cells and (talk.standing in last or not MEMORIES[kind].needs_snapshot):
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("nothing was saved in an idle moment")


@each_kind
async def test_saving_again_writes_nothing(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        await Talk(kind).turns(daemon, 2)
        before = await written(daemon)
        assert before > 0
        assert await written(daemon) == before


@each_kind
async def test_two_that_save_at_once_write_and_drop_each_snapshot_once(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `verify`, or a park, beside the idle moment: after every turn of nine."""
    async with rig_of(kind, state_dir).daemon() as daemon:
        checkpoints, talk = daemon.machine.checkpoints, Talk(kind)
        wrote, dropped = list[int](), list[str]()
        put, drop = Store.put_snapshot, Store.drop

        def putting(store: Store, tokens: Tokens, payload: memoryview) -> int:
            wrote.append(len(tokens))
            return put(store, tokens, payload)

        def dropping(store: Store, keys: Collection[str]) -> int:
            dropped.extend(keys)
            return drop(store, keys)

        monkeypatch.setattr(Store, "put_snapshot", putting)
        monkeypatch.setattr(Store, "drop", dropping)
        for _ in range(9):
            await talk.turns(daemon, 1)
            assert await asyncio.gather(checkpoints.write(), checkpoints.write()) == [[], []]
        assert len(wrote) == len(set(wrote)) and len(dropped) == len(set(dropped))
        assert bool(wrote) == bool(dropped) == MEMORIES[kind].needs_snapshot


@each_kind
async def test_the_front_and_the_last_snapshots_of_a_line_are_kept(
    state_dir: Path, kind: str
) -> None:
    """However many turns there are, and whether each is saved or several at once."""
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        for _ in range(3):
            await talk.turns(daemon, 1)
            await daemon.machine.saver.save_all()
        await talk.turns(daemon, 3)
        await daemon.machine.saver.save_all()
        stored = daemon.machine.store.lookup(prompt_of(talk.messages))
        positions = [snapshot.position for snapshot in stored.snapshots]
        assert daemon.machine.store.usage().snapshots == len(positions)
        if not MEMORIES[kind].needs_snapshot:
            assert positions == []
            return
        front, *others = positions
        assert 300 < front < talk.replies[0].report.prompt_tokens
        ends = [talk.copy(count).standing for count in range(3, 7)]
        prompts = [reply.report.prompt_tokens - 1 for reply in talk.replies[-2:]]
        assert others == sorted([*ends, *prompts])


@each_kind
async def test_what_is_written_per_turn_does_not_grow(state_dir: Path, kind: str) -> None:
    """Blocks that are full are never written again."""
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        blocks = []
        for _ in range(12):
            await talk.turns(daemon, 1)
            await daemon.machine.saver.save_all()
            stored = daemon.machine.store.lookup(prompt_of(talk.messages))
            blocks.append(stored.blocks)
            full = talk.standing // BLOCK_TOKENS if MEMORIES[kind].has_blocks else 0
            assert len(stored.blocks) in (full, full + 1)
        for before, after in itertools.pairwise(blocks):
            kept = [b.key for b in before if b.length == BLOCK_TOKENS]
            assert [b.key for b in after[: len(kept)]] == kept
        usage = daemon.machine.store.usage()
        assert usage.blocks == len(blocks[-1])


async def test_blocks_are_shared_by_sessions_with_the_same_front(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        one, other = Talk("attention", session="one"), Talk("attention", session="other")
        await one.say(daemon, "Something of one: " + "x" * 300)
        await daemon.machine.saver.save_all()
        before = daemon.machine.store.usage().blocks
        await other.say(daemon, "Something of another: " + "y" * 300)
        await daemon.machine.saver.save_all()
        shared = daemon.machine.store.lookup(prompt_of(one.messages)).blocks[0]
        assert daemon.machine.store.lookup(prompt_of(other.messages)).blocks[0] == shared
        assert daemon.machine.store.usage().blocks == 2 * before - 1
