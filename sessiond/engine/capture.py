"""A snapshot of a running line, and what taking them costs."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.engine.context import Payload
from sessiond.engine.memory import Tokens
from sessiond.engine.sequence import Owner
from sessiond.engine.staging import StagingBuffer


@dataclass(frozen=True, slots=True)
class Capture:
    """A snapshot, or a whole state, at the end of `tokens`; `rank` is what the run said of it."""

    tokens: Tokens
    payload: Payload
    owner: Owner | None
    rank: int = 0
    staged: StagingBuffer | None = None

    def release(self) -> None:
        """The payload is not needed any more; a staging buffer can be used again. Any thread."""
        if self.staged is not None:
            self.staged.release()


@dataclass(slots=True)
class CaptureCounts:
    """`direct` captures found both spares taken, so that the older one was exported at once.

    `pageable` ones found no staging buffer. `engine_ms` is all the time the engine spent on
    captures, `drain_ms` of it on copying them out.
    """

    frozen: int = 0
    direct: int = 0
    pageable: int = 0
    engine_ms: float = 0.0
    drain_ms: float = 0.0
