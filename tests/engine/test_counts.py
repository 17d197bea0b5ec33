"""What the engine counts while it works."""

from __future__ import annotations

from sessiond.metrics import EVALUATED
from tests.engine.cores import Desk, prompt, run_of


def evaluated(phase: str) -> float:
    value: float = EVALUATED.labels(phase)._value.get()
    return value


def test_tokens_are_counted_while_a_turn_runs() -> None:
    """40 tokens in chunks of 16. Result: 16 after a step; all, and four drawn, at the end."""
    before = evaluated("prefill"), evaluated("decode")
    desk = Desk(n_batch=16)
    desk.start(run_of(0, prompt(40), ignore_eos=True))
    desk.core.step()
    assert evaluated("prefill") == before[0] + 16
    desk.finish()
    assert (evaluated("prefill"), evaluated("decode")) == (before[0] + 40, before[1] + 4)


def test_lines_that_hold_something_are_resident() -> None:
    desk = Desk()
    assert desk.core.resident == 0
    for seq in (0, 2):
        desk.complete(run_of(seq, prompt(8)))
    assert desk.core.resident == 2
    desk.core.drop(0)
    assert desk.core.resident == 1
