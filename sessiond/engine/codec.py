"""How the state of a sequence is cut into blocks and snapshots and put together again.

A block is the position-addressable part of some consecutive tokens. It travels through the mover,
a sequence that is emptied of recurrent state first: `seq_cp` on recurrent memory ignores the range,
so a block would carry the whole state otherwise. On sliding-window memory the window stands at the
end of the exported bytes; it is cut off and replaced by the empty one. A snapshot is the part that
cannot be truncated. After the blocks a snapshot must follow, since importing a block clears the
recurrent state.

Measured on llama.cpp 0c1e57098: logits after a restore are bit-identical on all memory kinds.
"""

from __future__ import annotations

import numpy as np

from sessiond.engine.context import Context, Payload
from sessiond.engine.memory import Memory
from sessiond.errors import RestoreRefused

HEADER = 8
"""Bytes before the state proper in llama.cpp's sequence state."""


class StateCodec:
    """Engine thread only. `mover` and `empty` are sequence ids that belong to no line."""

    def __init__(self, context: Context, *, mover: int, empty: int) -> None:
        self._context = context
        self._mover = mover
        self._memory: Memory = context.memory
        self._nothing = (
            context.get_state(empty, partial=True) if self._memory.needs_snapshot else None
        )

    def export_block(self, seq: int, start: int, stop: int) -> Payload:
        """The cells of positions [start, stop) of `seq`, which is left untouched."""
        context, mover = self._context, self._mover
        context.seq_rm(mover, -1, -1)
        context.seq_cp(seq, mover, start, stop)
        if self._memory.recurrent and self._nothing is not None:
            context.set_state(mover, self._nothing, partial=True)
        try:
            return self._without_window(context.get_state(mover, partial=False))
        finally:
            context.seq_rm(mover, -1, -1)

    def import_block(self, payload: Payload, seq: int, *, upto: int) -> None:
        """Append a verified block to `seq`, without the positions from `upto` on.

        Raises RestoreRefused; `seq` then holds what it held before, less its recurrent state.
        """
        context, mover = self._context, self._mover
        context.seq_rm(mover, -1, -1)
        try:
            if not context.set_state(mover, payload, partial=False):
                raise RestoreRefused("llama.cpp did not accept a block.")
            if not context.seq_rm(mover, upto, -1):
                raise RestoreRefused(f"A block could not be trimmed to {upto} tokens.")
            context.seq_cp(mover, seq, -1, -1)
        finally:
            context.seq_rm(mover, -1, -1)

    def export_snapshot(self, seq: int) -> Payload:
        """The part of the state that cannot be truncated, at the position `seq` is at."""
        return self._context.get_state(seq, partial=True)

    def import_snapshot(self, payload: Payload, seq: int, position: int) -> None:
        """Put `seq` to exactly `position` tokens. Raises RestoreRefused; `seq` is then empty."""
        if not self._context.set_state(seq, payload, partial=True):
            self._refuse(seq, "llama.cpp did not accept a snapshot.")
        self.rewind(seq, position)

    def rewind(self, seq: int, position: int) -> None:
        """Drop everything from `position` on. Raises RestoreRefused; `seq` is then empty."""
        if not self._context.seq_rm(seq, position, -1) or not self.stands_at(seq, position):
            self._refuse(seq, f"The state does not end at {position} tokens.")

    def stands_at(self, seq: int, position: int) -> bool:
        """Whether the next token of `seq` can be evaluated at `position`."""
        if self._context.pos_max(seq) != position - 1:
            return False
        if not self._memory.n_swa or self._memory.recurrent:
            return True  # pos_min of recurrent memory is that of the state, not of the window
        return self._context.pos_min(seq) <= self._memory.window_start(position)

    def fork(self, source: int, target: int, position: int) -> None:
        """Give `target` the cells of `source` up to `position`, shared, not copied.

        With a window, `target` gets a window of its own: cells with two owners are never reused.
        Raises RestoreRefused where `source` cannot be cut there without a snapshot.
        """
        self._context.seq_rm(target, -1, -1)
        end = self._context.pos_max(source) + 1
        if self._memory.recurrent or position == end:
            self._context.seq_cp(source, target, -1, -1)
        else:
            self._context.seq_cp(source, target, 0, position)
        if self._memory.n_swa:
            window = self._context.get_state(target, partial=True)
            if not self._context.set_state(target, window, partial=True):
                self._refuse(target, "llama.cpp did not accept a window.")
        self.rewind(target, position)

    def keep_cells(self, source: int, target: int, stop: int) -> None:
        """Leave `target` with only the position-addressable cells [0, stop) of `source`.

        Both may be the same sequence. On memory that needs one, a snapshot must follow.
        """
        if source != target:
            self._context.seq_rm(target, -1, -1)
            if self._memory.has_blocks and stop > 0:
                self._context.seq_cp(source, target, 0, stop)
        if self._memory.recurrent and self._nothing is not None:
            self._context.set_state(target, self._nothing, partial=True)
        if not self._context.seq_rm(target, stop, -1):
            self._refuse(target, f"The cells from {stop} on could not be dropped.")

    def freeze(self, seq: int, spare: int, position: int) -> None:
        """Keep the snapshot of `seq` at `position` (its end) in `spare`, without copying it.

        Recurrent memory is copied on the next write. Of a window only its range is shared: with the
        full range the next decode would find no reusable cell.
        """
        self._context.seq_rm(spare, -1, -1)
        if self._memory.n_swa:
            start = self._memory.window_start(position)
            self._context.seq_cp(seq, spare, start, -1)
        else:
            self._context.seq_cp(seq, spare, 0, 0)

    def snapshot_size(self, seq: int) -> int:
        """Bytes of the snapshot of `seq`."""
        return self._context.state_size(seq, partial=True)

    def drain(self, spare: int, into: Payload | None = None) -> Payload:
        """The frozen snapshot; `spare` is empty afterwards. Waits for queued computation.

        `into` is memory of exactly its size; without it, new memory is taken.
        """
        try:
            if into is None:
                return self._context.get_state(spare, partial=True)
            self._context.copy_snapshot(spare, into)
            return into
        finally:
            self._context.seq_rm(spare, -1, -1)

    def export_whole(self, seq: int) -> Payload:
        return self._context.get_state(seq, partial=False)

    def import_whole(self, payload: Payload, seq: int, position: int) -> None:
        """Restore a whole blob that was exported at `position`.

        Raises RestoreRefused; `seq` is then empty.
        """
        self._context.seq_rm(seq, -1, -1)
        if not self._context.set_state(seq, payload, partial=False):
            self._refuse(seq, "llama.cpp did not accept a state.")
        if not self.stands_at(seq, position):
            self._refuse(seq, f"The state does not end at {position} tokens.")

    def _without_window(self, block: Payload) -> Payload:
        if self._nothing is None or not self._memory.n_swa:
            return block
        partial = self._context.state_size(self._mover, partial=True) - HEADER
        base = np.frombuffer(block, np.uint8)[: len(block) - partial]
        nothing = np.frombuffer(self._nothing, np.uint8)[HEADER:]
        return np.concatenate((base, nothing)).data

    def _refuse(self, seq: int, why: str) -> None:
        self._context.seq_rm(seq, -1, -1)
        raise RestoreRefused(why)
