"""A line put together again from its parts goes on as if it had never been away."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sessiond.errors import RestoreRefused
from tests.engine.worlds import (
    LINE,
    OTHER,
    REAL,
    RECURRENT,
    REWINDABLE,
    SPARE,
    TAIL,
    WINDOW_ONLY,
    WITH_BLOCKS,
    WITH_SNAPSHOTS,
    Bench,
    Record,
    Shape,
    World,
    recorded,
    restore,
)


def kinds(names: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", names, indirect=True)


def off(rows: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a share of the largest logit."""
    return float(np.abs(rows - expected).max() / np.abs(expected).max())


def same_but_rounding(world: World, rows: np.ndarray, expected: np.ndarray) -> bool:
    """Cells in another order are summed in another order; a fake does not round."""
    return off(rows, expected) <= (0 if world.exact_forks else 0.1)


def restored(world: World, position: int | None = None, shape: Shape | None = None) -> Bench:
    bench = world.open(shape)
    restore(bench, world.record, world.record.end if position is None else position)
    return bench


# --- restore


def test_blocks_and_a_snapshot_continue_bit_identically(world: World) -> None:
    record = world.record
    bench = restored(world)
    assert bench.context.pos_max(LINE) == record.end - 1
    assert np.array_equal(bench.logits(world.tokens, record.end), record.end_logits)


def test_landing_in_the_middle_of_a_block_continues_bit_identically(world: World) -> None:
    record = world.record
    bench = restored(world, record.inside)
    assert bench.context.pos_max(LINE) == record.inside - 1
    assert np.array_equal(bench.logits(world.tokens, record.inside), record.inside_logits)


@pytest.mark.parametrize("shape", [Shape(2048), Shape(n_seq_max=7), Shape(n_ubatch=16)])
def test_state_moves_to_a_context_of_another_shape(world: World, shape: Shape) -> None:
    record = world.record
    bench = restored(world, shape=shape)
    assert np.array_equal(bench.logits(world.tokens, record.end), record.end_logits)


def test_a_restored_line_exports_to_the_same_bytes(world: World) -> None:
    record = world.record
    bench = restored(world)
    spans = zip(record.cuts, record.cuts[1:], record.blocks, strict=False)
    for start, stop, block in spans:
        assert bytes(bench.codec.export_block(LINE, start, stop)) == bytes(block)
    if record.snapshot is not None:
        assert bytes(bench.codec.export_snapshot(LINE)) == bytes(record.snapshot)


@kinds(WITH_BLOCKS)
def test_a_block_is_trimmed_when_it_is_imported(world: World) -> None:
    record = world.record
    long, short = world.open(), world.open()
    long.codec.import_block(record.blocks[0], LINE, upto=40)
    long.codec.keep_cells(LINE, OTHER, record.end)
    short.codec.import_block(record.blocks[0], LINE, upto=record.cuts[1])
    short.codec.keep_cells(LINE, OTHER, 40)
    assert long.whole(OTHER) == short.whole(OTHER)


def test_a_whole_blob_continues_bit_identically(world: World) -> None:
    record = world.record
    bench = world.open()
    bench.feed(world.tokens[:20], 0)
    bench.codec.import_whole(record.whole, LINE, record.end)
    assert np.array_equal(bench.logits(world.tokens, record.end), record.end_logits)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_quantised_cells_continue_bit_identically(smol: World, kv_type: str) -> None:
    cells = {"type_k": kv_type, "type_v": kv_type}
    record = recorded(smol.open(**cells), smol)
    bench = smol.open(**cells)
    restore(bench, record, record.end)
    assert np.array_equal(bench.logits(smol.tokens, record.end), record.end_logits)
    assert len(record.blocks[0]) < 0.6 * len(smol.record.blocks[0])


@kinds(WITH_BLOCKS)
def test_cells_of_another_line_serve_up_to_where_the_blocks_begin(world: World) -> None:
    record = world.record
    bench = world.open()
    bench.codec.import_block(record.blocks[0], OTHER, upto=record.end)
    bench.codec.keep_cells(OTHER, LINE, record.cuts[1])
    for block in record.blocks[1:]:
        bench.codec.import_block(block, LINE, upto=record.end)
    if record.snapshot is not None:
        bench.codec.import_snapshot(record.snapshot, LINE, record.end)
    assert np.array_equal(bench.logits(world.tokens, record.end), record.end_logits)


@kinds(("hybrid", *(name for name in WITH_BLOCKS if name not in REAL)))
def test_a_block_of_another_line_shows_itself(world: World) -> None:
    record, other, bench = world.record, world.open(), world.open()
    other.feed(world.tokens[150 : 150 + record.cuts[1]], 0)
    foreign = other.codec.export_block(LINE, 0, record.cuts[1])
    for block in (foreign, *record.blocks[1:]):
        bench.codec.import_block(block, LINE, upto=record.end)
    if record.snapshot is not None:
        bench.codec.import_snapshot(record.snapshot, LINE, record.end)
    assert not np.array_equal(bench.logits(world.tokens, record.end), record.end_logits)


# --- freeze and drain


@kinds(WITH_SNAPSHOTS)
def test_a_frozen_snapshot_is_the_one_of_its_moment(world: World) -> None:
    """1. Freeze and drain at once. 2. Freeze, go on with the line, drain: the same bytes."""
    record, bench = world.record, long_line(world)
    bench.codec.freeze(LINE, SPARE, record.end)
    at_once = bytes(bench.codec.drain(SPARE))
    bench.codec.freeze(LINE, SPARE, record.end)
    bench.feed(world.tokens[: record.end + 100], record.end)
    assert bytes(bench.codec.drain(SPARE)) == at_once
    assert bench.context.pos_max(SPARE) == -1


@kinds(WITH_SNAPSHOTS)
def test_a_frozen_snapshot_is_a_direct_export_but_for_the_sequence_id(world: World) -> None:
    record, bench = world.record, restored(world)
    bench.codec.freeze(LINE, SPARE, record.end)
    frozen = bytes(bench.codec.drain(SPARE))
    direct = bytes(bench.codec.export_snapshot(LINE))
    if world.exact_forks:
        assert frozen == direct
        return
    a, b = np.frombuffer(frozen, np.int32), np.frombuffer(direct, np.int32)
    assert set(a[a != b]) <= {SPARE} and set(b[a != b]) <= {LINE}


@kinds(WITH_SNAPSHOTS)
def test_a_line_restored_from_a_frozen_snapshot_continues_bit_identically(world: World) -> None:
    record, bench = world.record, restored(world)
    bench.codec.freeze(LINE, SPARE, record.end)
    bench.feed(world.tokens[: record.end + 100], record.end)
    frozen = bench.codec.drain(SPARE)
    fresh = world.open()
    for block in record.blocks:
        fresh.codec.import_block(block, LINE, upto=record.end)
    fresh.codec.import_snapshot(frozen, LINE, record.end)
    assert np.array_equal(fresh.logits(world.tokens, record.end), record.end_logits)


# --- fork


def test_a_fork_at_the_end_goes_on_beside_its_source(world: World) -> None:
    record, bench = world.record, restored(world)
    bench.codec.fork(LINE, OTHER, record.end)
    forked = bench.logits(world.tokens, record.end, OTHER)
    original = bench.logits(world.tokens, record.end, LINE)
    assert same_but_rounding(world, forked, record.end_logits)
    assert same_but_rounding(world, original, record.end_logits)
    go_on(bench, world, record)


@kinds(REWINDABLE)
def test_a_fork_before_the_end_goes_on_beside_its_source(world: World) -> None:
    record, bench = world.record, long_line(world)
    bench.codec.fork(LINE, OTHER, record.inside)
    forked = bench.logits(world.tokens, record.inside, OTHER)
    original = bench.logits(world.tokens, record.end, LINE)
    assert same_but_rounding(world, forked, record.inside_logits)
    assert same_but_rounding(world, original, record.end_logits)
    bench.feed(world.tokens[: record.end], record.inside + TAIL + 2, OTHER)
    again = bench.logits(world.tokens, record.end, OTHER)
    assert same_but_rounding(world, again, record.end_logits)
    go_on(bench, world, record)


@kinds(RECURRENT)
def test_a_recurrent_line_cannot_be_forked_before_its_end(world: World) -> None:
    record, bench = world.record, restored(world)
    with pytest.raises(RestoreRefused):
        bench.codec.fork(LINE, OTHER, record.inside)
    assert bench.context.pos_max(OTHER) == -1
    assert np.array_equal(bench.logits(world.tokens, record.end), record.end_logits)


@kinds(WINDOW_ONLY)
def test_a_fork_before_the_window_is_refused(world: World) -> None:
    record, bench = world.record, long_line(world)
    with pytest.raises(RestoreRefused):
        bench.codec.fork(LINE, OTHER, 50)
    assert bench.context.pos_max(OTHER) == -1
    go_on(bench, world, record, lines=(LINE,), start=record.end)


def long_line(world: World) -> Bench:
    """Evaluated, not restored: its window holds what llama.cpp has not yet overwritten."""
    bench = world.open()
    bench.feed(world.tokens[: world.record.end], 0)
    return bench


def go_on(
    bench: Bench,
    world: World,
    record: Record,
    *,
    lines: tuple[int, ...] = (LINE, OTHER),
    start: int | None = None,
) -> None:
    """Long enough to need every cell of the window cache again, where there is one."""
    if not world.memory.n_swa:
        return
    first = record.end + TAIL + 2 if start is None else start
    for at in range(first, first + 160, 32):
        for seq in lines:
            bench.context.decode(world.tokens[at : at + 32], at, seq, logits=False)


# --- rewind


@kinds(REWINDABLE)
def test_a_rewound_line_continues_from_there(world: World) -> None:
    record, bench = world.record, long_line(world)
    bench.codec.rewind(LINE, record.inside)
    rows = bench.logits(world.tokens, record.inside)
    assert same_but_rounding(world, rows, record.inside_logits)


@kinds(WITH_SNAPSHOTS)
def test_a_rewind_that_is_not_possible_leaves_nothing(world: World) -> None:
    """Attention can always be rewound; a recurrent state never; a window only a little."""
    record, bench = world.record, restored(world)
    with pytest.raises(RestoreRefused):
        bench.codec.rewind(LINE, 50)
    assert_empty_and_usable(bench, world, record)


@kinds(WINDOW_ONLY)
def test_a_window_can_be_rewound_as_far_as_it_is_there(world: World) -> None:
    record, n_swa = world.record, world.memory.n_swa
    for missing in (0, 1, n_swa // 2):
        bench = long_line(world)
        position = bench.context.pos_min(LINE) + n_swa - missing
        if missing:
            with pytest.raises(RestoreRefused):
                bench.codec.rewind(LINE, position)
            assert bench.context.pos_max(LINE) == -1
        else:
            bench.codec.rewind(LINE, position)
            bench.feed(world.tokens[: record.inside], position)
            rows = bench.logits(world.tokens, record.inside)
            assert same_but_rounding(world, rows, record.inside_logits)


@kinds(WITH_SNAPSHOTS)
def test_a_line_rewinds_in_place_with_a_snapshot(world: World) -> None:
    record, bench = world.record, restored(world)
    bench.codec.keep_cells(LINE, LINE, record.inside)
    bench.codec.import_snapshot(record.inside_snapshot, LINE, record.inside)
    rows = bench.logits(world.tokens, record.inside)
    assert np.array_equal(rows, record.inside_logits)


# --- refusals


def assert_empty_and_usable(bench: Bench, world: World, record: Record) -> None:
    assert bench.context.pos_max(LINE) == -1
    restore(bench, record, record.end)
    assert np.array_equal(bench.logits(world.tokens, record.end), record.end_logits)


@pytest.mark.parametrize("length", ["0", "1", "8", "half", "all but one"])
def test_truncated_bytes_are_refused(world: World, length: str) -> None:
    record, bench = world.record, restored(world)
    for take, payload in importers(bench, record):
        size = {"half": len(payload) // 2, "all but one": len(payload) - 1}.get(length)
        with pytest.raises(RestoreRefused):
            take(payload[: int(length) if size is None else size])
        bench.context.seq_rm(LINE, -1, -1)
    assert_empty_and_usable(bench, world, record)


def test_bytes_of_another_kind_are_refused(world: World, worlds: Callable[[str], World]) -> None:
    donors = {"hybrid": "recurrent", "fake-hybrid": "fake-recurrent"}
    fallback = "fake-hybrid" if world.exact_forks else "hybrid"
    donor = worlds(donors.get(world.name, fallback)).record
    record, bench = world.record, world.open()
    for take, _ in importers(bench, record):
        for payload in (*donor.blocks, donor.snapshot, donor.whole):
            assert payload is not None
            with pytest.raises(RestoreRefused):
                take(payload)
            bench.context.seq_rm(LINE, -1, -1)
    assert_empty_and_usable(bench, world, record)


def test_a_state_of_another_position_is_refused(world: World) -> None:
    record, bench = world.record, world.open()
    with pytest.raises(RestoreRefused):
        bench.codec.import_whole(record.whole, LINE, record.end + 1)
    assert bench.context.pos_max(LINE) == -1
    if record.inside_snapshot is not None:
        for block in record.blocks:
            bench.codec.import_block(block, LINE, upto=record.end)
        with pytest.raises(RestoreRefused):
            bench.codec.import_snapshot(record.inside_snapshot, LINE, record.end)
    assert_empty_and_usable(bench, world, record)


def importers(
    bench: Bench, record: Record
) -> list[tuple[Callable[[memoryview], None], memoryview]]:
    codec, end = bench.codec, record.end
    found: list[tuple[Callable[[memoryview], None], memoryview]] = [
        (lambda payload: codec.import_whole(payload, LINE, end), record.whole)
    ]
    if record.blocks:
        found.append((lambda b: codec.import_block(b, LINE, upto=end), record.blocks[0]))
    if record.snapshot is not None:
        found.append((lambda s: codec.import_snapshot(s, LINE, end), record.snapshot))
    return found


# --- what is left alone


def test_exports_change_nothing(world: World) -> None:
    record, bench = world.record, restored(world)
    bench.codec.fork(LINE, OTHER, record.end)
    before = bench.whole(LINE), bench.whole(OTHER)
    if record.blocks:
        bench.codec.export_block(LINE, 10, record.end - 10)
    if record.snapshot is not None:
        bench.codec.export_snapshot(LINE)
        bench.codec.freeze(LINE, SPARE, record.end)
        bench.codec.drain(SPARE)
    bench.codec.export_whole(LINE)
    assert (bench.whole(LINE), bench.whole(OTHER)) == before
    assert bench.context.pos_max(SPARE) == -1


def test_a_restore_into_one_line_leaves_the_other_alone(world: World) -> None:
    record, bench = world.record, world.open()
    bench.feed(world.tokens[100:150], 0, OTHER)
    before = bench.whole(OTHER)
    restore(bench, record, record.end)
    with pytest.raises(RestoreRefused):
        bench.codec.import_whole(record.whole[:9], LINE, record.end)
    assert bench.whole(OTHER) == before
