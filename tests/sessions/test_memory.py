"""What stays in memory of a turn is the turn, not what it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sessions.kinds import KINDS, rig_of
from tests.sessions.talk import Talk


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_keeps_its_own_tokens_and_no_more(state_dir: Path, kind: str) -> None:
    """1. Six turns of a talk. Result: no array of a turn, or of a snapshot in memory, is a window
    on a longer one: a talk of n turns would hold its first tokens n times.
    """
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        for number in range(6):
            await talk.say(daemon, f"Question {number}?", max_tokens=4)
        await daemon.machine.checkpoints.collect()
        records = daemon.lifecycle._register.records
        trees = [await daemon.lifecycle._register.tree(record.name) for record in records]
        held = [tokens for tree in trees for turn in tree for tokens in (turn.prompt_tokens,)]
        held += daemon.machine.checkpoints._tokens.values()
        assert len(held) >= 6
        assert all(tokens.base is None for tokens in held)
