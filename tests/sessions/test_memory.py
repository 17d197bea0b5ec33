"""What stays in memory of a turn is the turn, not what it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sessions.kinds import KINDS, MEMORIES, rig_of
from tests.sessions.talk import Talk


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_keeps_its_own_tokens_and_no_more(state_dir: Path, kind: str) -> None:
    """1. Six turns of a talk. Result: no array of a turn is a window on a longer one: a talk of n
    turns would hold its first tokens n times. 2. The snapshots in memory hold them once, together.
    """
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        for number in range(6):
            await talk.say(daemon, f"Question {number}?", max_tokens=4)
        await daemon.machine.checkpoints.collect()
        records = daemon.lifecycle._register.records
        trees = [await daemon.lifecycle._register.tree(record.name) for record in records]
        held = [tokens for tree in trees for turn in tree for tokens in (turn.prompt_tokens,)]
        assert len(held) >= 6
        assert all(tokens.base is None for tokens in held)
        known = list(daemon.machine.checkpoints._tokens.values())
        assert len(known) >= 6 * MEMORIES[kind].needs_snapshot
        arrays = {id(tokens if tokens.base is None else tokens.base) for tokens in known}
        assert len(arrays) == MEMORIES[kind].needs_snapshot
