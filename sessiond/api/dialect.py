"""What one API has to say of a turn: its answer as a whole, or as server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sessiond.api.failure import Failure
from sessiond.engine.events import Logprob, Progress
from sessiond.sessions.turn import Finished, Spoken

Json = dict[str, Any]


class Dialect(Protocol):
    """One reply. Every method of a stream returns whole events, b"" for nothing to say yet."""

    def progress(self, progress: Progress) -> bytes: ...

    def spoken(self, spoken: Spoken) -> bytes: ...

    def last(self, finished: Finished) -> bytes: ...

    def alive(self) -> bytes:
        """A sign of life, after a silence."""
        ...

    def failed(self, failure: Failure) -> bytes:
        """The end of a stream that had begun already."""
        ...

    def whole(self, finished: Finished, logprobs: Sequence[Logprob] | None) -> Json: ...
