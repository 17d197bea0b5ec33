"""What was evaluated, evaluated again elsewhere; and what is in the context, as its bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sessiond.engine.core import FREEZE_SPARES, EngineCore
from sessiond.engine.memory import Tokens
from tests.rig import Daemon, Reply, Rig


def same_bits(one: Reply, other: Reply) -> bool:
    return len(one.logits) == len(other.logits) and all(
        np.array_equal(a, b) for a, b in zip(one.logits, other.logits, strict=True)
    )


@dataclass
class Journal:
    """Every decode of a context, in order: (tokens, start, logits wanted)."""

    calls: list[tuple[Tokens, int, bool]] = field(default_factory=list)

    def watch(self, daemon: Daemon) -> None:
        context: Any = daemon.context._context
        decode, rows = context.decode, context.decode_rows

        def decode_one(tokens: Tokens, start: int, seq: int, *, logits: bool) -> None:
            self.calls.append((tokens.copy(), start, logits))
            decode(tokens, start, seq, logits=logits)

        def decode_many(batch: Any) -> None:
            (row,) = batch
            self.calls.append((np.array([row.token], np.int32), row.position, True))
            rows(batch)

        context.decode, context.decode_rows = decode_one, decode_many

    def until(self, position: int) -> list[tuple[Tokens, int, bool]]:
        return [call for call in self.calls if call[1] + len(call[0]) <= position]


async def replayed(rig: Rig, calls: list[tuple[Tokens, int, bool]]) -> list[np.ndarray]:
    """Logits of every call that wanted them, in one fresh context."""
    async with rig.daemon() as daemon:

        def evaluate(core: Any) -> list[np.ndarray]:
            rows = []
            for tokens, start, logits in calls:
                core.context.decode(tokens, start, 0, logits=True)
                if logits:
                    rows.append(core.context.logits(-1).copy())
            return rows

        return await daemon.machine.engine.call(evaluate)


def frozen(core: EngineCore, seq: int) -> list[bytes]:
    """The snapshot of a line as each spare exports it: the sequence id is part of the bytes."""
    for _ in range(FREEZE_SPARES):
        core._capture(core.sequences[seq])
    captures = core.drain()
    return [bytes(capture.payload) for capture in captures]
