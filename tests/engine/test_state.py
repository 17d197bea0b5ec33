"""What the core knows about its sequences: views, captures, restores, shared cells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sessiond.engine.capture import Capture
from sessiond.engine.context import Payload
from sessiond.engine.core import FREEZE_SPARES
from sessiond.engine.landing import BlockImport, Landing
from sessiond.engine.memory import Memory
from sessiond.engine.sequence import Owner
from sessiond.errors import EngineError, RestoreRefused, StateDamaged
from tests.engine.cores import HYBRID, Desk, ended, prompt, run_of
from tests.engine.worlds import FAKE_MEMORY

OWNER = Owner("session", 1, "")


def hold(desk: Desk, seq: int, length: int, start: int = 0) -> None:
    desk.core.restore(Landing(seq, 0, owner=OWNER), prompt(0), iter(()))
    desk.complete(run_of(seq, prompt(length, start), max_tokens=0))


# --- views


def test_a_view_does_not_change_when_the_line_goes_on() -> None:
    desk = Desk()
    hold(desk, 0, 30)
    before = desk.core.views()[0]
    desk.complete(run_of(0, prompt(3000), start=30, max_tokens=0))
    after = desk.core.views()[0]
    assert before.tokens.tolist() == prompt(30).tolist()
    assert after.tokens.tolist() == prompt(3000).tolist()
    assert before.epoch == after.epoch, "appending replaces nothing"
    assert after.last_used > before.last_used


def test_a_view_does_not_change_when_the_line_is_replaced() -> None:
    desk = Desk()
    hold(desk, 0, 30)
    before = desk.core.views()[0]
    desk.core.restore(Landing(0, 10, source=0, keep=10), prompt(10), iter(()))
    desk.complete(run_of(0, np.append(prompt(10), prompt(30, start=7)), start=10))
    assert before.tokens.tolist() == prompt(30).tolist()
    assert desk.core.views()[0].epoch != before.epoch


def test_a_view_says_whose_line_it_is_and_whether_it_runs() -> None:
    desk = Desk()
    hold(desk, 0, 30)
    desk.start(run_of(1, prompt(10)))
    views = desk.core.views()
    assert [view.running for view in views] == [False, True, False]
    assert [view.owner for view in views] == [OWNER, None, None]
    desk.finish()
    desk.core.drop(0)
    assert [view.owner for view in desk.core.views()] == [None] * 3


def test_a_view_says_how_far_back_the_window_reaches() -> None:
    memory = FAKE_MEMORY["fake-swa"]
    desk = Desk(memory, n_batch=16)
    hold(desk, 0, 300)
    hold(desk, 1, 20)
    assert [view.window_start for view in desk.core.views()] == [desk.fake.pos_min(0), 0, 0]
    assert desk.fake.pos_min(0) > 200


def test_a_block_of_a_line_that_changed_is_not_exported() -> None:
    desk = Desk()
    hold(desk, 0, 30)
    epoch = desk.core.views()[0].epoch
    assert desk.core.export_block(0, epoch, 0, 30) is not None
    assert desk.core.export_block(0, epoch, 0, 31) is None
    desk.core.restore(Landing(0, 10, source=0, keep=10), prompt(10), iter(()))
    assert desk.core.export_block(0, epoch, 0, 10) is None


@pytest.mark.parametrize(("budget_ms", "exported"), [(0.0, 2), (60_000.0, 3)])
def test_blocks_are_exported_as_long_as_there_is_time_but_more_than_the_last_step_added(
    monkeypatch: pytest.MonkeyPatch, budget_ms: float, exported: int
) -> None:
    monkeypatch.setattr("sessiond.engine.core._EXPORT_MS", budget_ms)
    desk = Desk()
    hold(desk, 0, 30)
    epoch, spans = desk.core.views()[0].epoch, [(0, 10), (10, 20), (20, 30)]
    blocks = desk.core.export_blocks(0, epoch, spans)
    expected = [desk.core.export_block(0, epoch, start, stop) for start, stop in spans]
    assert blocks == expected[:exported]
    assert desk.core.export_blocks(0, epoch, [(0, 10), (20, 31)]) is None
    assert desk.core.export_blocks(0, epoch + 1, spans) is None


# --- captures


def test_captures_keep_their_order_and_are_counted() -> None:
    desk = Desk(HYBRID)
    hold(desk, 0, 0)
    positions = (5, 9, 13, 20, 31)
    desk.complete(run_of(0, prompt(32), max_tokens=0, captures=positions, capture_end=True))
    drained = desk.core.drain()
    assert [len(capture.tokens) for capture in drained] == [*positions, 32]
    assert {capture.owner for capture in drained} == {OWNER}
    assert desk.core.captures.frozen == FREEZE_SPARES
    assert desk.core.captures.direct == len(positions) + 1 - FREEZE_SPARES
    assert desk.core.drain() == []


def test_drained_spares_are_used_again() -> None:
    desk = Desk(HYBRID)
    for length in (10, 20, 30):
        desk.complete(run_of(0, prompt(length), start=length - 10, max_tokens=0, capture_end=True))
        (capture,) = desk.core.drain()
        assert len(capture.tokens) == length
    assert (desk.core.captures.frozen, desk.core.captures.direct) == (3, 0)


@pytest.mark.parametrize("name", ["fake-swa", "fake-recurrent", "fake-hybrid"])
def test_every_capture_restores_the_line_it_was_taken_of(name: str) -> None:
    memory, tokens = FAKE_MEMORY[name], prompt(90)
    desk = Desk(memory, n_batch=16)
    desk.complete(run_of(0, tokens, max_tokens=0, captures=(17, 40, 63, 88)))
    blocks = [desk.core.codec.export_block(0, 0, 90)] if memory.has_blocks else []
    for capture in desk.core.drain():
        position = len(capture.tokens)
        imports = tuple(BlockImport("block", 0, position) for _ in blocks)
        landing = Landing(1, position, blocks=imports, snapshot="snapshot")
        desk.core.restore(landing, tokens, iter([*blocks, capture.payload]))
        assert reply(desk, 1, position) == reply(Desk(memory), 1, 0)


def reply(desk: Desk, seq: int, start: int) -> tuple[int, ...]:
    run = run_of(seq, prompt(120), start=start, max_tokens=4, ignore_eos=True)
    return ended(desk.complete(run)).tokens


# --- restore


def saved(memory: Memory, length: int = 60, cut: int = 40) -> tuple[list[Payload], Payload | None]:
    """Blocks [0, cut) and [cut, length), and the snapshot."""
    desk = Desk(memory)
    desk.complete(run_of(0, prompt(length), max_tokens=0))
    epoch = desk.core.views()[0].epoch
    spans = ((0, cut), (cut, length)) if memory.has_blocks else ()
    blocks = [desk.core.export_block(0, epoch, start, stop) for start, stop in spans]
    snapshot = desk.core.export_snapshot(0).payload if memory.needs_snapshot else None
    return [block for block in blocks if block is not None], snapshot


def landing_on(memory: Memory, seq: int = 0, length: int = 60, cut: int = 40) -> Landing:
    blocks = (BlockImport("a", 0, cut), BlockImport("b", cut, length))
    return Landing(
        seq,
        length,
        blocks=blocks if memory.has_blocks else (),
        snapshot="s" if memory.needs_snapshot else None,
        owner=OWNER,
    )


def payloads(blocks: list[Payload], snapshot: Payload | None) -> Iterator[Payload]:
    yield from blocks
    if snapshot is not None:
        yield snapshot


@pytest.mark.parametrize("name", sorted(FAKE_MEMORY))
def test_a_landing_from_disk_goes_on_as_the_line_did(name: str) -> None:
    memory = FAKE_MEMORY[name]
    desk = Desk(memory)
    desk.complete(run_of(0, prompt(25, start=4), max_tokens=0))
    desk.core.restore(landing_on(memory), prompt(120), payloads(*saved(memory)))
    view = desk.core.views()[0]
    assert view.tokens.tolist() == prompt(60).tolist()
    assert view.owner == OWNER
    assert reply(desk, 0, 60) == reply(Desk(memory), 0, 0)


@pytest.mark.parametrize("name", sorted(FAKE_MEMORY))
def test_a_whole_state_goes_on_as_the_line_did(name: str) -> None:
    memory = FAKE_MEMORY[name]
    desk = Desk(memory)
    desk.complete(run_of(0, prompt(60), max_tokens=0))
    whole: Capture = desk.core.export_whole(0)
    landing = Landing(1, 60, snapshot="w", whole=True)
    desk.core.restore(landing, whole.tokens, iter([whole.payload]))
    assert reply(desk, 1, 60) == reply(Desk(memory), 0, 0)


@pytest.mark.parametrize("name", sorted(FAKE_MEMORY))
def test_a_landing_on_another_line_leaves_that_line_alone(name: str) -> None:
    memory = FAKE_MEMORY[name]
    desk = Desk(memory)
    desk.complete(run_of(0, prompt(60), max_tokens=0))
    desk.core.restore(Landing(1, 60, source=0, keep=60), prompt(60), iter(()))
    assert reply(desk, 1, 60) == reply(desk, 0, 60) == reply(Desk(memory), 0, 0)


def damaged() -> Iterator[Payload]:
    raise StateDamaged("The checksum is wrong.", key="k")
    yield memoryview(b"")


@pytest.mark.parametrize("name", sorted(FAKE_MEMORY))
@pytest.mark.parametrize("broken", ["missing", "damaged", "truncated"])
def test_a_failed_restore_leaves_the_line_empty_and_the_others_alone(
    name: str, broken: str
) -> None:
    memory = FAKE_MEMORY[name]
    desk = Desk(memory)
    hold(desk, 0, 50, start=3)
    hold(desk, 1, 20, start=5)
    blocks, snapshot = saved(memory)
    parts = list(payloads(blocks, snapshot))
    given: dict[str, Iterator[Payload]] = {
        "missing": iter(parts[:-1]),
        "damaged": damaged(),
        "truncated": iter([*parts[:-1], parts[-1][:-3]]),
    }
    with pytest.raises(StateDamaged if broken == "damaged" else RestoreRefused):
        desk.core.restore(landing_on(memory), prompt(60), given[broken])
    views = desk.core.views()
    assert [len(view.tokens) for view in views] == [0, 20, 0]
    assert views[0].owner is None
    assert desk.fake.pos_max(0) == -1
    assert reply(desk, 0, 0) == reply(Desk(memory), 0, 0)


def test_a_landing_that_nothing_leads_to_is_refused() -> None:
    desk = Desk()
    with pytest.raises(RestoreRefused):
        desk.core.restore(Landing(0, 10), prompt(10), iter(()))
    assert len(desk.core.views()[0].tokens) == 0


def test_a_landing_without_its_snapshot_is_refused() -> None:
    desk = Desk(HYBRID)
    blocks, _ = saved(HYBRID)
    landing = Landing(0, 60, blocks=landing_on(HYBRID).blocks)
    with pytest.raises(RestoreRefused):
        desk.core.restore(landing, prompt(60), iter(blocks))
    assert desk.fake.pos_max(0) == -1


# --- free cells


def test_shared_cells_are_counted_once() -> None:
    desk = Desk(n_ctx=1000)
    hold(desk, 0, 100)
    desk.core.restore(Landing(1, 80, source=0, keep=80), prompt(80), iter(()))
    assert desk.core.free_cells() == 900
    desk.complete(run_of(1, np.append(prompt(80), prompt(20, start=9)), start=80, max_tokens=0))
    assert desk.core.free_cells() == 880


@pytest.mark.parametrize("how", ["dropped", "replaced", "refused"])
def test_cells_of_a_fork_count_when_its_source_is_gone(how: str) -> None:
    desk = Desk(n_ctx=1000)
    hold(desk, 0, 100)
    desk.core.restore(Landing(1, 80, source=0, keep=80), prompt(80), iter(()))
    if how == "dropped":
        desk.core.drop(0)
    elif how == "replaced":
        desk.core.restore(Landing(0, 0), prompt(0), iter(()))
    else:
        with pytest.raises(RestoreRefused):
            desk.core.restore(Landing(0, 10), prompt(10), iter(()))
    assert desk.core.free_cells() == 920


def test_cells_of_a_fork_count_when_its_source_is_rewound() -> None:
    desk = Desk(n_ctx=1000)
    hold(desk, 0, 100)
    desk.core.restore(Landing(1, 80, source=0, keep=80), prompt(80), iter(()))
    desk.core.restore(Landing(0, 30, source=0, keep=30), prompt(30), iter(()))
    assert desk.core.free_cells() == 1000 - 80
    desk.core.restore(Landing(1, 50, source=1, keep=50), prompt(50), iter(()))
    assert desk.core.free_cells() == 1000 - 50


def test_a_fork_that_is_rewound_shares_no_more_than_it_has() -> None:
    desk = Desk(n_ctx=1000)
    hold(desk, 0, 100)
    desk.core.restore(Landing(1, 80, source=0, keep=80), prompt(80), iter(()))
    desk.core.restore(Landing(1, 50, source=1, keep=50), prompt(50), iter(()))
    assert desk.core.free_cells() == 900


def test_a_state_that_cannot_be_read_is_an_engine_error() -> None:
    """`get_state` fails: the caller hears of it and the mover is empty again."""
    desk = Desk()
    hold(desk, 0, 40)
    fake, original = desk.fake, desk.fake.get_state

    def short(seq: int, *, partial: bool) -> Payload:
        raise EngineError("llama.cpp exported 3 of 40 bytes.")

    fake.get_state = short  # type: ignore[method-assign]
    with pytest.raises(EngineError):
        desk.core.export_block(0, desk.core.views()[0].epoch, 0, 40)
    fake.get_state = original  # type: ignore[method-assign]
    assert [fake.pos_max(seq) for seq in range(3, fake.n_seq_max)] == [-1] * 4
