"""What is known of the state of sessions whether their model is in memory or not."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.engine.fingerprint import Fingerprint
from sessiond.engine.memory import Memory
from sessiond.engine.sequence import SequenceView
from sessiond.engine.thread import Engine
from sessiond.errors import EngineError
from sessiond.sessions.rates import Rates
from sessiond.store.store import Store


@dataclass(frozen=True, slots=True)
class Shelf:
    """The store, and what a state in it means. `engine` None: the model is not in memory.

    `whole`: states are saved in one piece.
    """

    store: Store
    memory: Memory
    fingerprint: Fingerprint
    rates: Rates
    whole: bool
    engine: Engine | None = None

    async def views(self) -> tuple[SequenceView, ...]:
        """The lines in the context. None where the engine has stopped meanwhile."""
        if self.engine is None:
            return ()
        try:
            return await self.engine.views()
        except EngineError:
            return ()
