"""Where sessions leave as files and come as files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from sessiond.sessions.health import Loaded
from sessiond.sessions.model_host import ModelHost
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transfer.exporting import Exported, exported
from sessiond.sessions.transfer.importing import Importer, Naming
from sessiond.sessions.transfer.incoming import Incoming
from sessiond.sessions.transfer.report import ImportReport
from sessiond.sessions.turn import SessionSummary


@dataclass(frozen=True, slots=True)
class Desk:
    """Event loop only. Inside `model` it is loaded, inside `alone` no turn begins in the session
    that comes under a name. `keep_free` bytes of the disk stay free.
    """

    register: Register
    host: ModelHost
    model: Callable[[], AbstractAsyncContextManager[Loaded]]
    alone: Callable[[str], AbstractAsyncContextManager[None]]
    summary: Callable[[SessionRecord], Awaitable[SessionSummary]]
    keep_free: Callable[[], int]

    def clear(self) -> None:
        """Removes what a killed daemon left. Raises OSError."""
        self._incoming.clear()

    async def export(self, name: str, *, state: bool) -> Exported:
        """As `Turns` has it."""
        record = self.register[name]
        if state and self.host.shelf is None:
            await self.host.ready()
        shelf = self.host.shelf if state else None
        with self.host.using():
            tree = await self.register.tree(name)
            return await exported(record, tree, shelf, self.host.machine)

    async def import_session(
        self,
        file: AsyncIterator[bytes],
        name: str | None,
        naming: Naming,
        *,
        state: bool,
        trusted: bool,
        size: int,
    ) -> ImportReport:
        """As `Turns` has it."""
        if name is not None:
            self.register.refuse_taken(name)
        self._incoming.check_room(size)
        importer = Importer(self.register, self.alone, self.summary)
        named = naming if name is None else lambda _: name
        async with self._incoming.received(file) as received, self.model() as loaded:
            return await importer.take(received, named, loaded, wanted=state, trusted=trusted)

    @property
    def _incoming(self) -> Incoming:
        return Incoming(self.register.directory, self.keep_free())
