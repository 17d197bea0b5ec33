"""A plan is sound, and no other one leaves fewer tokens to evaluate or reads fewer bytes for it."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.engine.landing import BlockImport
from sessiond.engine.memory import Memory, Tokens, as_tokens, common_prefix
from sessiond.sessions.plan import Plan, Resident, plan, source_of
from sessiond.store.chain import Kind
from sessiond.store.found import Stored, StoredBlock, StoredSnapshot
from tests.sessions.kinds import MEMORIES

BLOCK = 4
SMALL = [Memory(memory.kind, min(memory.n_swa, 3)) for memory in MEMORIES.values()]
ATTENTION, SWA, RECURRENT, HYBRID, _ = SMALL
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(as_tokens)
sizes = st.integers(0, 5)


@st.composite
def residents(draw: st.DrawFn, prompt: Tokens) -> list[Resident]:
    """Lines that begin as the prompt does, more or less."""
    drawn = []
    for seq in range(draw(st.integers(0, 3))):
        beginning = prompt[: draw(st.integers(0, len(prompt)))].tolist()
        rest = draw(st.lists(st.integers(0, 1), max_size=4))
        held = as_tokens(beginning + rest)
        if len(held):
            start = draw(st.integers(0, len(held) - 1))
            drawn.append(Resident(seq, held, start, own=draw(st.booleans())))
    return drawn


@st.composite
def stores(draw: st.DrawFn, prompt: Tokens, memory: Memory) -> Stored:
    covered = draw(st.integers(0, len(prompt))) if memory.has_blocks else 0
    blocks = tuple(
        StoredBlock(f"b{start}", start, BLOCK, min(BLOCK, covered - start), 10 + draw(sizes))
        for start in range(0, covered, BLOCK)
    )
    kinds = [Kind.SNAPSHOT, Kind.WHOLE] if memory.needs_snapshot else [Kind.WHOLE]
    wanted = st.tuples(st.integers(1, len(prompt)), st.sampled_from(kinds))
    positions = draw(st.lists(wanted, max_size=4, unique=True))
    snapshots = [
        StoredSnapshot(f"{kind}{position}", position, draw(sizes), kind)
        for position, kind in sorted(positions)
    ]
    return Stored(blocks, tuple(snapshots))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tokens, int, list[Resident], Stored, Memory, bool]:
    memory, prompt = draw(st.sampled_from(SMALL)), draw(tokens)
    limit = draw(st.sampled_from([len(prompt) - 1, len(prompt)]))
    stored = draw(stores(prompt, memory))
    return prompt, limit, draw(residents(prompt)), stored, memory, draw(st.booleans())


def legal(
    prompt: Tokens, limit: int, lines: list[Resident], stored: Stored, memory: Memory, whole: bool
) -> Iterator[tuple[int, int]]:
    """Every position that can be landed on, with the bytes that have to be read for it."""
    yield 0, 0
    for line in lines:
        for position in range(1, min(limit, common_prefix(line.tokens, prompt)) + 1):
            at_end = position == len(line.tokens)
            cuts = not whole and not memory.recurrent
            reaches = not memory.n_swa or line.window_start <= memory.window_start(position)
            if reaches and (at_end or cuts):
                yield position, 0
    for snapshot in stored.snapshots:
        if snapshot.kind is Kind.WHOLE and snapshot.position <= limit:
            yield snapshot.position, snapshot.bytes
    if whole:
        return
    landings = (
        [(s.position, s.bytes) for s in stored.snapshots if s.kind is Kind.SNAPSHOT]
        if memory.needs_snapshot
        else [(position, 0) for position in range(1, limit + 1)]
    )
    for position, extra in landings:
        if position <= limit:
            for read in cells(prompt, position, lines, stored, memory):
                yield position, read + extra


def cells(
    prompt: Tokens, position: int, lines: list[Resident], stored: Stored, memory: Memory
) -> Iterator[int]:
    """Bytes of blocks for the cells [0, position), after those kept of a line or of none."""
    if not memory.has_blocks:
        yield 0
        return
    shared = max([common_prefix(line.tokens, prompt) for line in lines], default=0)
    for keep in range(min(shared, position) + 1):
        needed = [b for b in stored.blocks if keep <= b.start < position]
        end = needed[-1].start + needed[-1].usable if needed else keep
        if end >= position and (not needed or needed[0].start == keep):
            yield sum(block.bytes for block in needed)


@given(cases())
@settings(max_examples=400)
def test_the_plan_is_the_best_there_is(
    case: tuple[Tokens, int, list[Resident], Stored, Memory, bool],
) -> None:
    prompt, limit, lines, stored, memory, whole = case
    found = plan(prompt, limit, lines, stored, memory, whole=whole)
    best = max(legal(*case), key=lambda landing: (landing[0], -landing[1]))
    assert (found.position, found.restored_bytes) == best


@given(cases())
@settings(max_examples=400)
def test_the_plan_is_sound(
    case: tuple[Tokens, int, list[Resident], Stored, Memory, bool],
) -> None:
    prompt, limit, lines, stored, memory, whole = case
    found = plan(prompt, limit, lines, stored, memory, whole=whole)
    by_seq = {line.seq: line for line in lines}
    line = by_seq[found.source] if found.source is not None else None
    assert 0 <= found.keep <= found.position <= limit
    assert 0 <= found.restored <= found.position
    assert (line is not None) or not found.keep
    if line is not None:
        assert common_prefix(line.tokens, prompt) >= found.keep
    if found.snapshot is not None:
        assert found.snapshot in stored.snapshots
        assert found.snapshot.position == found.position
    if found.in_place:
        assert line is not None
        assert line.own
        assert found.position == found.keep == len(line.tokens)
        assert not found.needs_restore
    if found.snapshot is None or found.snapshot.kind is Kind.SNAPSHOT:
        assert_cells_cover(found, memory)
    if whole:
        assert not found.blocks
        assert found.snapshot is None or found.snapshot.kind is Kind.WHOLE


def assert_cells_cover(found: Plan, memory: Memory) -> None:
    """Kept cells and blocks follow each other without a gap up to the landing."""
    end = found.keep
    for block in found.blocks:
        assert block.start == end
        end = block.upto
    assert end == found.position or not memory.has_blocks


def resident(text: str, *, own: bool = True, seq: int = 0) -> Resident:
    return Resident(seq, as_tokens([ord(c) for c in text]), 0, own=own)


def prompt_of(text: str) -> Tokens:
    return as_tokens([ord(c) for c in text])


def test_an_own_line_that_ends_where_the_prompt_goes_on_is_extended() -> None:
    found = plan(prompt_of("abcdef"), 5, [resident("abc")], Stored(), RECURRENT)
    assert found == Plan(position=3, source=0, in_place=True, own=True, keep=3, cells=3)


def test_a_line_of_another_session_is_copied() -> None:
    found = plan(prompt_of("abcdef"), 5, [resident("abc", own=False)], Stored(), RECURRENT)
    assert (found.source, found.in_place, source_of(found, known=False)) == (0, False, "fork")


def test_of_equal_lines_the_own_one_is_taken() -> None:
    lines = [resident("abc", own=False, seq=0), resident("abc", seq=1)]
    assert plan(prompt_of("abcdef"), 5, lines, Stored(), ATTENTION).source == 1


def test_cells_in_memory_are_not_read_again() -> None:
    blocks = (StoredBlock("b0", 0, 4, 4, 10), StoredBlock("b4", 4, 4, 2, 10))
    snapshot = StoredSnapshot("s", 6, 3, Kind.SNAPSHOT)
    stored = Stored(blocks, (snapshot,))
    found = plan(prompt_of("abcdefgh"), 7, [resident("abcdefgx")], stored, HYBRID)
    assert (found.keep, found.blocks, found.restored_bytes) == (6, (), 3)
    half = plan(prompt_of("abcdefgh"), 7, [resident("abcdx")], stored, HYBRID)
    assert (half.keep, half.blocks) == (4, (BlockImport("b4", 4, 6),))
    assert (half.position, half.restored) == (6, 2)


def test_a_window_that_no_longer_reaches_back_is_not_rewound() -> None:
    line = Resident(0, prompt_of("abcdefgh"), window_start=4, own=True)
    assert plan(prompt_of("abcdex"), 5, [line], Stored(), SWA).position == 0
    assert plan(prompt_of("abcdefgx"), 7, [line], Stored(), SWA).position == 7


def test_state_in_memory_is_not_called_disk() -> None:
    waiting = Stored((), (StoredSnapshot("memory", 4, 0, Kind.SNAPSHOT),))
    found = plan(prompt_of("abcdef"), 5, [], waiting, RECURRENT)
    assert (found.position, found.restored, source_of(found, known=True)) == (4, 0, "resident")
    foreign = [resident("abcdx", own=False)]
    forked = plan(prompt_of("abcdef"), 5, foreign, waiting, HYBRID)
    assert (forked.position, source_of(forked, known=True)) == (4, "fork")


def test_where_nothing_is_reused_the_source_is_the_text() -> None:
    nothing = plan(prompt_of("abc"), 2, [], Stored(), HYBRID)
    assert source_of(nothing, known=True) == "ledger"
    assert source_of(nothing, known=False) == "new"
