"""The daemon as one visitor sees it. Routes get nothing else, so none can forget whose it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sessiond.api.visitor import Visitor
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.naming import called, full_name, owner_of
from sessiond.sessions.responses import not_found
from sessiond.sessions.transcript import Content
from sessiond.sessions.turn import (
    Health,
    OpenTurn,
    ResumeReport,
    SessionChange,
    SessionSummary,
    StoredResponse,
    TranscriptMessage,
    TurnRequest,
    Turns,
    TurnSummary,
    VerifyReport,
)

if TYPE_CHECKING:
    from sessiond.sessions.anatomy import Anatomy
    from sessiond.sessions.gauges import Gauges
    from sessiond.sessions.history import HistoryReport
    from sessiond.sessions.text import Served, Vocabulary
    from sessiond.sessions.transfer.exporting import Exported
    from sessiond.sessions.transfer.importing import Naming
    from sessiond.sessions.transfer.report import ImportReport


class OwnTurns:
    """Implements `Turns` with the names that the visitor's clients give, which have no owner in
    them: another owner's session is one that does not exist.

    What is told of a session has the name so, too; an administrator is told full names.
    """

    def __init__(self, turns: Turns, visitor: Visitor) -> None:
        self._turns = turns
        self._visitor = visitor

    # --- the whole daemon

    @property
    def model_name(self) -> str | None:
        return self._turns.model_name

    async def health(self) -> Health:
        return await self._turns.health()

    async def gauges(self) -> Gauges:
        return await self._turns.gauges()

    async def ready(self) -> None:
        await self._turns.ready()

    async def count(self, content: Content) -> int:
        return await self._turns.count(content)

    async def vocabulary(self) -> Vocabulary:
        return await self._turns.vocabulary()

    async def served(self) -> Served:
        return await self._turns.served()

    async def verify(self) -> VerifyReport:
        return await self._turns.verify()

    # --- the visitor's sessions

    async def open(self, request: TurnRequest) -> OpenTurn:
        ref = request.session
        session = replace(
            ref,
            name=ref.name and self._full(ref.name),
            parent=ref.parent and self._full(ref.parent),
            owner=self._visitor.owner,
        )
        opened = await self._turns.open(replace(request, session=session))
        return replace(opened, session=called(opened.session))

    async def summaries(self) -> list[SessionSummary]:
        listed = await self._turns.summaries()
        return [self._seen(one) for one in listed if self._sees(owner_of(one.name))]

    async def summary(self, name: str) -> SessionSummary:
        return self._seen(await self._turns.summary(self._full(name)))

    async def create(self, name: str, change: SessionChange) -> SessionSummary:
        return self._seen(await self._turns.create(self._full(name), change))

    async def update(self, name: str, change: SessionChange) -> SessionSummary:
        change = replace(change, name=change.name and self._full(change.name))
        return self._seen(await self._turns.update(self._full(name), change))

    async def export(self, name: str, *, state: bool) -> Exported:
        return await self._turns.export(self._full(name), state=state)

    async def import_session(
        self,
        file: AsyncIterator[bytes],
        name: str | None,
        naming: Naming,
        *,
        state: bool,
        trusted: bool = True,
        size: int = 0,
    ) -> ImportReport:
        """Of an owner only what was said, see `Turns.import_session`."""
        full = None if name is None else self._full(name)

        def named(found: str) -> str:
            return self._full(naming(found))

        trusted = trusted and self._visitor.administrator
        report = await self._turns.import_session(
            file, full, named, state=state, trusted=trusted, size=size
        )
        return replace(report, session=self._seen(report.session))

    async def fork(self, name: str, new: str, at: int | None) -> SessionSummary:
        return self._seen(await self._turns.fork(self._full(name), self._full(new), at))

    async def compact(self, name: str) -> SessionSummary:
        return self._seen(await self._turns.compact(self._full(name)))

    async def explain(self, name: str) -> tuple[Explanation, ...]:
        return await self._turns.explain(self._full(name))

    async def delete(self, name: str) -> None:
        await self._turns.delete(self._full(name))

    async def resume(self, name: str) -> ResumeReport:
        report = await self._turns.resume(self._full(name))
        return replace(report, session=self._told(report.session))

    async def park(self, name: str) -> SessionSummary:
        return self._seen(await self._turns.park(self._full(name)))

    async def turns(self, name: str) -> list[TurnSummary]:
        return await self._turns.turns(self._full(name))

    async def anatomy(self, name: str) -> Anatomy:
        found = await self._turns.anatomy(self._full(name))
        return replace(found, session=self._told(found.session))

    async def history(self, owner: str | None = None) -> HistoryReport:
        """Of the visitor's sessions; of all for an administrator, or of one `owner`."""
        everybody = self._visitor.everybody
        report = await self._turns.history(owner if everybody else self._visitor.owner)
        shown = (replace(turn, session=self._told(turn.session)) for turn in report.shown)
        return replace(report, shown=tuple(shown))

    async def transcript(self, name: str) -> list[TranscriptMessage]:
        return await self._turns.transcript(self._full(name))

    async def response(self, response: str) -> StoredResponse:
        stored = await self._turns.response(response)
        if owner_of(stored.session) != self._visitor.owner:
            raise not_found(response)
        return replace(stored, session=called(stored.session))

    async def forget_response(self, response: str) -> None:
        await self.response(response)
        await self._turns.forget_response(response)

    # --- inside

    def _full(self, name: str) -> str:
        return full_name(self._visitor.owner, name)

    def _sees(self, owner: str) -> bool:
        return self._visitor.everybody or owner == self._visitor.owner

    @property
    def _told(self) -> Callable[[str], str]:
        """The name that the visitor is told of a session that it sees."""
        return str if self._visitor.administrator else called

    def _seen(self, summary: SessionSummary) -> SessionSummary:
        group = summary.group and self._told(summary.group)
        return replace(summary, name=self._told(summary.name), group=group)
