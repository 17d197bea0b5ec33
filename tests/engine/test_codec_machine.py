"""Whatever happens to a line, its next token is that of a context that evaluated its tokens."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sessiond.engine.codec import StateCodec
from sessiond.engine.context import Payload
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.memory import Memory, as_tokens
from sessiond.errors import RestoreRefused
from tests.engine.worlds import FAKE_MEMORY

LINES = 4
MOVER, EMPTY = LINES + 2, LINES + 3
BATCH = 4
"""The window cache is short, so that windows are often gone."""
MEMORY = {
    name: replace(memory, n_swa=4) if memory.n_swa else memory
    for name, memory in FAKE_MEMORY.items()
}
Line = tuple[int, ...]
tokens_of = st.lists(st.integers(0, 5), min_size=1, max_size=24)
seqs = st.integers(0, LINES - 1)


def fresh(memory: Memory) -> FakeContext:
    return FakeContext(FakeModel(memory), n_ctx=1 << 14, n_seq_max=LINES + 4, n_batch=BATCH)


def feed(context: FakeContext, seq: int, line: Line, start: int) -> None:
    for at in range(start, len(line), BATCH):
        context.decode(as_tokens(line[at : at + BATCH]), at, seq, logits=False)


def next_logits(context: FakeContext, seq: int, position: int) -> bytes:
    """Of one more token, evaluated in a copy."""
    copy = deepcopy(context)
    copy.decode(as_tokens([7]), position, seq, logits=True)
    return copy.logits(-1).tobytes()


@cache
def oracle(memory: Memory, line: Line) -> bytes:
    context = fresh(memory)
    feed(context, 0, line, 0)
    return next_logits(context, 0, len(line))


@dataclass(frozen=True, eq=False)
class Saved:
    """Blocks of [0, cuts[1]), [cuts[1], cuts[2]) … and the snapshot at the end of `line`."""

    line: Line
    cuts: tuple[int, ...]
    blocks: tuple[Payload, ...]
    snapshot: Payload | None


class CodecMachine(RuleBasedStateMachine):
    @initialize(name=st.sampled_from(sorted(MEMORY)))
    def open(self, name: str) -> None:
        self.memory = MEMORY[name]
        self.context = fresh(self.memory)
        self.codec = StateCodec(self.context, mover=MOVER, empty=EMPTY)
        self.lines: list[Line] = [()] * LINES
        self.saved: list[Saved] = []
        self.spares = deque([LINES, LINES + 1])
        self.frozen: deque[tuple[int, Saved]] = deque()

    @rule(seq=seqs, more=tokens_of)
    def append(self, seq: int, more: list[int]) -> None:
        line = (*self.lines[seq], *more)
        feed(self.context, seq, line, len(self.lines[seq]))
        self.lines[seq] = line

    @rule(seq=seqs, size=st.integers(3, 30))
    def save(self, seq: int, size: int) -> None:
        if self.lines[seq]:
            saved = self.blocks_of(seq, size)
            snapshot = self.codec.export_snapshot(seq) if self.memory.needs_snapshot else None
            self.saved.append(Saved(saved.line, saved.cuts, saved.blocks, snapshot))

    @rule(seq=seqs, size=st.integers(3, 30))
    def freeze(self, seq: int, size: int) -> None:
        if self.lines[seq] and self.memory.needs_snapshot and self.spares:
            spare = self.spares.popleft()
            self.codec.freeze(seq, spare, len(self.lines[seq]))
            self.frozen.append((spare, self.blocks_of(seq, size)))

    @precondition(lambda self: self.frozen)
    @rule()
    def drain(self) -> None:
        spare, saved = self.frozen.popleft()
        snapshot = self.codec.drain(spare)
        self.spares.append(spare)
        self.saved.append(Saved(saved.line, saved.cuts, saved.blocks, snapshot))

    @precondition(lambda self: self.saved)
    @rule(seq=seqs, data=st.data())
    def restore(self, seq: int, data: st.DataObject) -> None:
        saved = data.draw(st.sampled_from(self.saved))
        self.codec.keep_cells(seq, seq, 0)
        self.build(saved, seq, 0, data)

    @precondition(lambda self: self.saved)
    @rule(source=seqs, into=seqs, data=st.data())
    def restore_beside_cells(self, source: int, into: int, data: st.DataObject) -> None:
        """The cells of a line as far as they are the saved ones, then blocks, then the snapshot."""
        saved = data.draw(st.sampled_from(self.saved))
        cuts = [at for at in saved.cuts if self.lines[source][:at] == saved.line[:at]]
        kept = data.draw(st.sampled_from(cuts)) if self.memory.has_blocks else 0
        if kept > len(self.lines[source]):
            kept = 0
        self.codec.keep_cells(source, into, kept)
        self.build(saved, into, saved.cuts.index(kept), data)

    def build(self, saved: Saved, seq: int, first: int, data: st.DataObject) -> None:
        position = len(saved.line)
        if saved.snapshot is None:
            position = data.draw(st.integers(max(saved.cuts[first], 1), position))
        for start, block in list(zip(saved.cuts, saved.blocks, strict=False))[first:]:
            if start < position:
                self.codec.import_block(block, seq, upto=position)
        if saved.snapshot is not None:
            self.codec.import_snapshot(saved.snapshot, seq, position)
        assert self.codec.stands_at(seq, position)
        self.lines[seq] = saved.line[:position]

    @rule(source=seqs, into=seqs, data=st.data())
    def fork(self, source: int, into: int, data: st.DataObject) -> None:
        if source == into or not self.lines[source]:
            return
        position = data.draw(st.integers(1, len(self.lines[source])))
        possible = self.can_stand_at(source, position)
        try:
            self.codec.fork(source, into, position)
            assert possible
        except RestoreRefused:
            assert not possible
            position = 0
        self.lines[into] = self.lines[source][:position]

    @rule(seq=seqs, data=st.data())
    def rewind(self, seq: int, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.lines[seq])))
        possible = self.can_stand_at(seq, position)
        try:
            self.codec.rewind(seq, position)
            assert possible
        except RestoreRefused:
            assert not possible
            position = 0
        self.lines[seq] = self.lines[seq][:position]

    @rule(seq=seqs)
    def drop(self, seq: int) -> None:
        self.context.seq_rm(seq, -1, -1)
        self.lines[seq] = ()

    def blocks_of(self, seq: int, size: int) -> Saved:
        line = self.lines[seq]
        cuts = (*range(0, len(line), size), len(line)) if self.memory.has_blocks else (0,)
        blocks = tuple(self.codec.export_block(seq, start, stop) for start, stop in pairwise(cuts))
        return Saved(line, cuts, blocks, None)

    def can_stand_at(self, seq: int, position: int) -> bool:
        if self.memory.recurrent:
            return position in (0, len(self.lines[seq]))
        if self.memory.n_swa and position:
            return self.context.pos_min(seq) <= self.memory.window_start(position)
        return True

    @invariant()
    def every_line_goes_on_as_a_fresh_one_would(self) -> None:
        for seq, line in enumerate(getattr(self, "lines", ())):
            assert self.context.pos_max(seq) == len(line) - 1
            assert next_logits(self.context, seq, len(line)) == oracle(self.memory, line)

    @invariant()
    def what_belongs_to_no_line_is_empty(self) -> None:
        if hasattr(self, "context"):
            assert [self.context.pos_max(seq) for seq in (*self.spares, MOVER, EMPTY)] == [-1] * (
                2 + len(self.spares)
            )


TestCodecMachine = CodecMachine.TestCase
TestCodecMachine.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def test_the_oracle_tells_lines_apart() -> None:
    for memory in MEMORY.values():
        answers = {oracle(memory, line) for line in ((), (1,), (1, 2), (2, 1), (1,) * 40)}
        assert len(answers) == 5
    assert np.frombuffer(oracle(memory, (1,)), np.float32).size > 0
