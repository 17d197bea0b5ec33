"""What a disk wears off: state is written about once, not again with every turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.metrics import REGISTRY
from tests.sessions.kinds import chat, rig_of

SESSIONS = 10
BLOCKS, SNAPSHOTS = 1, 3
"""The budget beside twice the final state: so many files a turn, as large as the largest there are.
A turn that is saved by itself writes its last block anew, and where it can be gone on from."""


@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        ("hybrid", 80),
        pytest.param("hybrid", 1000, marks=pytest.mark.proof_durability),
        pytest.param("attention", 1000, marks=pytest.mark.proof_durability),
    ],
)
async def test_bytes_written_stay_within_the_budget(state_dir: Path, kind: str, turns: int) -> None:
    """More sessions than fit in the context, so that every turn is saved by itself.

    Result: bytes written ≤ 2 x final state + a block and three snapshots a turn; all are counted.
    """
    async with rig_of(kind, state_dir).daemon() as daemon:
        counted = written()
        talks = [chat(front=f"Be terse, {number}.") for number in range(SESSIONS)]
        for turn in range(turns):
            messages = talks[turn % SESSIONS]
            messages.append({"role": "user", "content": f"Question {turn}?"})
            reply = await daemon.say(f"s{turn % SESSIONS}", messages, max_tokens=4)
            messages.append({"role": "assistant", "content": reply.text})
        await daemon.machine.saver.save_all()
        store = daemon.machine.store
        final, index = store.usage().bytes, store._vault.index
        block, snapshot = (
            max(
                (r.bytes for r in index.after("", 1 << 20) if r.present and test(r.kind)), default=0
            )
            for test in (lambda kind: kind == "block", lambda kind: kind != "block")
        )
        budget = 2 * final + turns * (BLOCKS * block + SNAPSHOTS * snapshot)
        assert final < store.written <= budget
        assert written() - counted == store.written


def written() -> float:
    """As the metric has it, of all kinds of files."""
    name = "sessiond_save_bytes_total"
    kinds = ("block", "snapshot", "whole")
    return sum(REGISTRY.get_sample_value(name, {"kind": kind}) or 0 for kind in kinds)
