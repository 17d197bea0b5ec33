"""All sessions of the daemon: their records and trees in memory, backed by the ledger."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sessiond.errors import Conflict, LedgerError, SessionNotFound, Unavailable
from sessiond.sessions.journal import Journal, Waiting
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.naming import called, full_name
from sessiond.sessions.outline import Outline, TurnOutline, outline
from sessiond.sessions.pinned import KEPT as FRONTS
from sessiond.sessions.pinned import Fronts
from sessiond.sessions.responses import not_found, stored_response
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.tree import SessionTree, Turn, without_responses
from sessiond.sessions.turn import StoredResponse
from sessiond.store.trouble import Trouble

logger = logging.getLogger(__name__)
T = TypeVar("T")
UNNAMED = re.compile("chat-[0-9a-f]{12}")
"""Names that sessiond gives, without their owner."""
KEPT_TREES = 256
"""Sessions whose turns stay in memory; those that are not in the ledger yet stay in any case."""


class Register:
    """Event loop only; whatever touches the ledger runs on one worker thread."""

    def __init__(self, ledger: Ledger) -> None:
        self.fronts = Fronts()
        self._ledger = ledger
        self._journal = Journal(ledger)
        self._trouble = Trouble(logger, "Turns that waited are saved now.")
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._closed = False
        self._records: dict[str, SessionRecord] = {}
        self._trees: OrderedDict[str, SessionTree] = OrderedDict()
        self._in_use: Counter[str] = Counter()
        self._unborn: dict[str, tuple[SessionRecord, SessionTree]] = {}
        self._claimed: set[str] = set()
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Read the sessions, not their turns. Raises LedgerError."""
        records = await self._work(self._ledger.sessions)
        self.fronts = Fronts(await self._work(lambda: self._ledger.fronts(FRONTS)))
        self._records = {record.name: record for record in records}

    async def close(self) -> None:
        """What comes after it raises Unavailable. Turns that still wait are lost, loudly."""
        loop, closing = asyncio.get_running_loop(), self._ledger.close
        self._refuse_if_closed()
        self._closed = True
        try:
            await loop.run_in_executor(self._worker, closing)
        finally:
            if problem := self.problem:
                logger.error("%s", problem)
            self._worker.shutdown()

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def __getitem__(self, name: str) -> SessionRecord:
        """Raises SessionNotFound."""
        try:
            return self._records[name]
        except KeyError:
            raise SessionNotFound(
                f"There is no session {called(name)!r}.",
                hint="`sessiond list` shows them.",
                param="session",
            ) from None

    @property
    def records(self) -> list[SessionRecord]:
        """The most recently used first."""
        return sorted(self._records.values(), key=lambda record: -record.last_used)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def unsaved(self) -> int:
        """Turns that are only in memory because the ledger could not be written."""
        return self._journal.waiting.count

    @property
    def problem(self) -> str:
        """How many turns are not saved, and why, or ""."""
        return _worded(self._journal.waiting)

    def is_saved(self, record: SessionRecord) -> bool:
        return record.id not in self._journal.waiting.turns

    async def tree(self, name: str) -> SessionTree:
        """The turns of a session; an empty tree if it has none yet. Raises LedgerError.

        The tree stays the session's only until the loop is yielded to; `commit` takes it back.
        """
        tree = await self.glance(name)
        if name in self._records:
            tree = self._trees.setdefault(name, tree)
            self._trees.move_to_end(name)
            self._trim()
        return tree

    @asynccontextmanager
    async def opened(
        self, name: str, new: SessionRecord, begun: SessionTree | None = None
    ) -> AsyncGenerator[tuple[SessionRecord, SessionTree], None]:
        """A session and its tree, the same for all turns that are under way in it.

        An unknown name is a session like `new` with the turns of `begun`, in memory only until a
        turn is committed. Raises LedgerError.
        """
        with self._using(name):
            tree = await self.tree(name)
            if begun is not None and not len(tree) and name not in self._records:
                tree = begun
            if name in self._records:
                yield self._records[name], self._trees.setdefault(name, tree)
            else:
                yield self._unborn.setdefault(name, (new, tree))

    async def glance(self, name: str) -> SessionTree:
        """As `tree`, for a look at one of many: it is not kept in memory for this.

        Empty also for one that is being removed, which the ledger no longer has.
        """
        if name in self._trees:
            return self._trees[name]
        if name not in self._records:
            return self._unborn[name][1] if name in self._unborn else SessionTree()
        try:
            return await self._work(lambda: self._ledger.load(name))
        except SessionNotFound:
            return SessionTree()

    @property
    def directory(self) -> Path:
        """Where the ledger is."""
        return self._ledger.directory

    async def outlines(self) -> dict[str, Outline]:
        """Of all sessions whose turns are in the ledger, by id. Raises LedgerError."""
        return await self._work(self._read_outlines)

    async def create(self, record: SessionRecord) -> None:
        """Raises Conflict if the name is taken, LedgerError.

        Where the first turn of the name is under way already, its session is the one.
        """
        if record.name in self._records or record.name in self._claimed:
            raise Conflict(f"There is a session {record.called!r} already.", param="name")
        first, begun = self._unborn.get(record.name, (record, SessionTree()))
        await self._make(replace(record, id=first.id, created=first.created), begun)

    async def _make(self, record: SessionRecord, tree: SessionTree) -> None:
        """The session is there from now on: turns that come meanwhile are written behind it."""
        turns = tuple(tree)
        self._records[record.name], self._trees[record.name] = record, tree
        try:
            await self._work(lambda: self._ledger.create(record, turns))
        except BaseException:
            if self._records.get(record.name) is record:
                del self._records[record.name]
                self._trees.pop(record.name, None)
            raise

    async def change(self, name: str, **fields: Any) -> None:
        """Set fields of the session's record; turns that are committed meanwhile set theirs.

        Raises SessionNotFound, LedgerError.
        """
        async with self._changing:
            changed = replace(self[name], **fields)
            await self._work(lambda: self._journal.update(changed, fields))
            if self[name].id == changed.id:  # else it was removed, and made anew
                self._records[name] = replace(self[name], **fields)

    def refuse_taken(self, name: str) -> None:
        """Raises Conflict where there is a session of this name, or its first turn is under way."""
        if name in self._records or name in self._unborn or name in self._claimed:
            raise Conflict(f"There is a session {called(name)!r} already.", param="name")

    async def rename(self, name: str, new: str, **fields: Any) -> None:
        """As `change`, and `new` is its name from then on; no turn may be under way of either.

        Raises Conflict if the new name is taken, SessionNotFound, LedgerError.
        """
        self.refuse_taken(new)
        self._claimed.add(new)
        try:
            async with self._changing:
                changed = replace(self[name], name=new, **fields)
                await self._work(lambda: self._journal.update(changed, ["name", *fields]))
                del self._records[name]
                self._records[new] = changed
                if (tree := self._trees.pop(name, None)) is not None:
                    self._trees[new] = tree
        finally:
            self._claimed.discard(new)

    async def adopt(self, record: SessionRecord, tree: SessionTree) -> int:
        """Make `record` a session with all turns of a tree, in one transaction.

        Responses stay with the turns that have given them: the turns here lose ids that are known
        already; how many those were. Raises Conflict if the name is taken, LedgerError.
        """
        self.refuse_taken(record.name)
        self._claimed.add(record.name)
        try:
            async with self._changing:
                ids = [turn.response_id for turn in tree if turn.response_id is not None]
                known = await self._work(lambda: self._journal.known_responses(ids))
                await self._make(record, without_responses(tree, known))
        finally:
            self._claimed.discard(record.name)
        return len(known)

    async def fork(self, record: SessionRecord, source: str, at: int) -> None:
        """Make `record` a session with the turns of `source` up to turn `at`, numbers and all.

        A request for it that comes meanwhile goes on from them. Raises Conflict if the name is
        taken or its first turn is under way, NotFound for an unknown turn, LedgerError.
        """
        turns = (await self.tree(source)).path(at)
        self.refuse_taken(record.name)
        # A response belongs to the session that gave it.
        turns = tuple(replace(turn, response_id=None, response=None) for turn in turns)
        tree = SessionTree()
        for turn in turns:
            tree.add(turn)
        await self._make(record, tree)

    async def forget_fronts(self, owner: str, tree: SessionTree) -> None:
        """Of a session of `owner` that was removed; others with the same front keep it by their
        own turns.

        Raises LedgerError.
        """
        if keys := self.fronts.forget(owner, tree):
            await self._work(lambda: self._ledger.forget_fronts(keys))

    async def keep_front(self, key: str, texts: tuple[str, ...]) -> None:
        """A front that stays from now on; where the ledger cannot be written, in memory only."""
        if not self.fronts.keep(key, texts):
            return
        try:
            await self._work(lambda: self._ledger.keep_front(key, texts))
        except LedgerError as error:
            logger.warning("A pinned front is kept in memory only: %s", error)

    async def delete(self, name: str) -> None:
        record = self[name]
        await self._work(lambda: self._journal.delete(record))
        self._records.pop(name, None)
        self._trees.pop(name, None)

    async def outline_of(self, record: SessionRecord) -> list[TurnOutline]:
        """Of the turns that are in the ledger. Raises LedgerError."""
        return await self._work(lambda: self._ledger.outline_of(record.id))

    async def remove(self, record: SessionRecord, numbers: Sequence[int]) -> int:
        """Turns of a session of which none runs or waits to be saved, and on which no other stands.

        Raises LedgerError; those that are there are as before then.
        """
        self._trees.pop(record.name, None)
        gone = await self._work(lambda: self._ledger.remove(record.id, numbers))
        self._trees.pop(record.name, None)
        return gone

    async def reclaim(self, pages: int) -> int:
        """Give empty pages of the ledger back to the disk. Raises LedgerError."""
        return await self._work(lambda: self._ledger.reclaim(pages))

    async def forget_copies(self, before: float) -> int:
        """Of the ledger as it was before a change of its format."""
        return await self._work(lambda: self._ledger.forget_copies(before))

    async def fingerprints(self) -> set[str]:
        """Of all models and settings that any turn was made with. Raises LedgerError."""
        return await self._work(self._ledger.fingerprints)

    async def commit(
        self,
        record: SessionRecord,
        tree: SessionTree,
        turn: Turn,
        *,
        compacts: bool = False,
        entitles: bool = False,
    ) -> bool:
        """Add a turn to its tree and write both durably; False if that has to wait.

        `record` is the session as the turn knew it; what has been set meanwhile stays. A turn that
        `compacts` uses the permission to do so up. One that `entitles` gives the title; any other
        gives it to a session without one.
        """
        known = self._records.get(record.name, record)
        used = replace(
            known.used(turn.created),
            title=record.title if entitles else known.title or record.title,
            may_compact=known.may_compact and not compacts,
        )
        inherited = () if used.name in self._records else tuple(tree)
        tree.add(turn)
        self._records[used.name] = used
        self._trees[used.name] = tree
        self._trees.move_to_end(used.name)
        with self._using(used.name):
            saved = await self._work(lambda: self._journal.commit(used, *inherited, turn))
        self._say_so()
        return saved

    async def response(self, response: str) -> StoredResponse:
        """Raises ResponseNotFound, LedgerError."""
        found = await self._work(lambda: self._journal.answered(response))
        if found is None or found[0] not in self:
            raise not_found(response)
        name, number = found
        tree = await self.tree(name)
        if number not in tree:
            raise not_found(response)
        return stored_response(response, name, tree, number)

    async def forget_response(self, response: str) -> None:
        """Its turn stays. Raises ResponseNotFound, LedgerError."""
        if not await self._work(lambda: self._journal.forget_response(response)):
            raise not_found(response)

    async def retry(self) -> int:
        """Try again to write what waits; the number of turns that still wait."""
        left = await self._work(self._journal.retry) if self.unsaved else 0
        self._say_so()
        return left

    async def count_turns(self) -> int:
        """Reads and checks the whole ledger. Raises LedgerError."""
        return await self._work(self._ledger.check_integrity)

    def new_name(self, owner: str) -> str:
        """The full name for a session nobody named."""
        return full_name(owner, f"chat-{time.time_ns() & 0xFFFFFFFFFFFF:012x}")

    @contextmanager
    def _using(self, name: str) -> Iterator[None]:
        self._in_use[name] += 1
        try:
            yield
        finally:
            self._in_use[name] -= 1
            if not self._in_use[name]:
                del self._in_use[name]
                self._unborn.pop(name, None)
            self._trim()

    def _trim(self) -> None:
        """Let go of the trees used longest ago that can be read again."""
        if len(self._trees) <= KEPT_TREES:
            return
        unsaved = self._journal.waiting.turns
        for name in list(self._trees)[:-KEPT_TREES]:
            if not self._in_use[name] and self._records[name].id not in unsaved:
                del self._trees[name]

    def _say_so(self) -> None:
        """In the log, once when turns begin to wait and once when none does any more."""
        waiting = self._journal.waiting
        if problem := _worded(waiting):
            self._trouble.begins(problem, cause=str(waiting.error))
        else:
            self._trouble.ends()

    def _read_outlines(self) -> dict[str, Outline]:
        now = time.time()
        return {id_: outline(turns, now) for id_, turns in self._ledger.outlines().items()}

    async def _work(self, function: Callable[[], T]) -> T:
        self._refuse_if_closed()
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Unavailable("sessiond is stopping.", hint="Try again in a moment.")


def _worded(waiting: Waiting) -> str:
    if not (count := waiting.count):
        return ""
    turns = "1 turn is" if count == 1 else f"{count} turns are"
    return f"{turns} not saved, only in memory: {waiting.error}"
