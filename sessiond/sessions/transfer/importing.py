"""Makes a session of a verified export: its turns in one transaction, then its state as far as it
is of this model and fits. Event loop only, but for what is said to block.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import BinaryIO
from uuid import uuid4

import numpy as np

from sessiond.engine.memory import Tokens
from sessiond.errors import InvalidExport, InvalidRequest, StateError, StoreFull
from sessiond.sessions.health import Loaded
from sessiond.sessions.ledger import TurnRefused
from sessiond.sessions.naming import called
from sessiond.sessions.register import Register
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transfer.container import read_at
from sessiond.sessions.transfer.manifest import Session
from sessiond.sessions.transfer.report import ImportReport
from sessiond.sessions.transfer.turn_line import CONTROLS
from sessiond.sessions.transfer.verifying import Export, StateFile, read_export
from sessiond.sessions.tree import SessionTree, without_responses
from sessiond.sessions.turn import SessionSummary
from sessiond.sessions.volatility import Volatility
from sessiond.store.chain import (
    BLOCK_TOKENS,
    Kind,
    block_start,
    chain_keys,
    root_key,
    state_key,
)
from sessiond.store.store import Store

logger = logging.getLogger(__name__)
Naming = Callable[[str], str]
"""The full name for the one in a file. Raises InvalidRequest."""
UNTRUSTED = "only the administrator can import state"
_LABEL = 512


@dataclass(frozen=True, slots=True)
class Taken:
    """State files that are in the store now and their bytes, those that are not, and why not."""

    files: int = 0
    bytes: int = 0
    skipped: int = 0
    because: str = ""


@dataclass(frozen=True, slots=True)
class Importer:
    """Event loop only. Inside `alone` no turn begins in the session that comes under a name."""

    register: Register
    alone: Callable[[str], AbstractAsyncContextManager[None]]
    summary: Callable[[SessionRecord], Awaitable[SessionSummary]]

    async def take(
        self, file: BinaryIO, naming: Naming, loaded: Loaded, *, wanted: bool, trusted: bool
    ) -> ImportReport:
        """`wanted`: the state, too; `trusted` as `Turns` has it. Raises Conflict if the name is
        taken, InvalidExport, InvalidRequest for the name in the file, LedgerError: before anything
        has changed.
        """
        export = await asyncio.to_thread(_checked, file, loaded)
        session, tree = export.head.session, export.tree
        record = _record(session, naming(session.name))
        ids = {turn.response_id for turn in tree if turn.response_id is not None}
        if not trusted:
            tree = await asyncio.to_thread(without_responses, tree, ids)
        async with self.alone(record.name):
            try:
                dropped = await self.register.adopt(record, tree)
            except TurnRefused as error:
                raise InvalidExport("The turns cannot be stored as they are.") from error
            store = loaded.machine.store.of(record.owner)
            unwanted = "" if trusted else UNTRUSTED
            unwanted = unwanted if wanted else "not asked for"
            taken = await _take_state(file, export, store, loaded, unwanted)
        return ImportReport(
            session=await self.summary(record),
            turns=len(export.tree),
            tokens=sum(len(t.prompt_tokens) + len(t.reply_tokens) for t in export.tree),
            state_taken=taken.files,
            state_bytes=taken.bytes,
            state_skipped=taken.skipped,
            skipped_because=taken.because,
            responses_dropped=dropped if trusted else len(ids),
        )


def _record(session: Session, name: str) -> SessionRecord:
    """A session of its own, used now. Raises InvalidExport."""
    _check(session)
    return SessionRecord(
        id=uuid4().hex,
        name=name,
        named=session.named or called(name) != session.name,
        agent=session.agent,
        title=CONTROLS.sub(" ", session.title),
        policy=session.policy,
        created=session.created,
        last_used=time.time(),
        pinned_front=session.pinned_front,
    )


async def _take_state(
    file: BinaryIO, export: Export, store: Store, loaded: Loaded, unwanted: str
) -> Taken:
    """What cannot be stored is told, never raised; nothing is taken that is `unwanted`, and why."""
    marks = loaded.machine.fingerprint
    origin, files = export.head.state_of, export.state
    reason = unwanted
    if origin.model != marks.model:
        reason = reason or "it is of another model"
    elif origin.fingerprint != marks.value:
        reason = reason or "it is of other settings or another llama.cpp"
    if reason or not files:
        return Taken(skipped=len(files), because=reason if files else "")
    return await asyncio.to_thread(_put_all, store, file, files, _lines(export))


def _check(session: Session) -> None:
    names = session.pinned_front or ()
    try:
        Volatility(names)
    except InvalidRequest as error:
        raise InvalidExport(f"The pinned front is no good: {error.message}") from error
    if len(session.agent or "") > _LABEL or len(names) > 32 or any(len(n) > 500 for n in names):
        raise InvalidExport("Something about the session is longer than it may be.")
    if CONTROLS.search(session.agent or ""):
        raise InvalidExport("The agent's name has characters that no name has.")


def _checked(file: BinaryIO, loaded: Loaded) -> Export:
    """Blocks the thread. Raises InvalidExport, OSError."""
    export = read_export(file)
    _check_tokens(export.tree, loaded)
    return export


def _check_tokens(tree: SessionTree, loaded: Loaded) -> None:
    """Raises InvalidExport where this model's vocabulary cannot have been the one that made it."""
    most = loaded.machine.engine.model.info.n_vocab
    for turn in tree:
        if turn.tokenizer == loaded.tokenizer:
            tokens = np.concatenate((turn.prompt_tokens, turn.reply_tokens))
            if len(tokens) and int(tokens.max()) >= most:
                raise InvalidExport(f"Turn {turn.number} has a token that the model has not.")


def _lines(export: Export) -> dict[int, Tokens]:
    """The tokens that state is told of, by the turn that they end with."""
    ends = {file.told.turn for file in export.state}
    return {turn: export.tree.path_tokens(turn) for turn in ends}


def _put_all(
    store: Store, file: BinaryIO, files: Sequence[StateFile], lines: dict[int, Tokens]
) -> Taken:
    """Blocks the thread. None of it is evicted to make room for the rest of it."""
    taken = Taken()
    with store.lease([*_keys(store, files, lines)]):
        for place, one in enumerate(files):
            told = one.told
            try:
                payload = read_at(file, one.place.offset, one.place.bytes)
                _put(store, one, lines[told.turn][: told.end], payload)
            except (StateError, OSError) as error:
                logger.warning("State was not imported: %s", error)
                why = "the store is full" if isinstance(error, StoreFull) else "the store failed"
                return replace(taken, skipped=len(files) - place, because=why)
            taken = replace(taken, files=taken.files + 1, bytes=taken.bytes + told.bytes)
    return taken


def _put(store: Store, one: StateFile, tokens: Tokens, payload: bytes) -> None:
    told = one.told
    if told.kind is Kind.BLOCK:
        store.put_block(tokens, told.start, payload)
    else:
        store.put_snapshot(tokens, payload, "whole" if told.kind is Kind.WHOLE else "snapshot")


def _keys(store: Store, files: Sequence[StateFile], lines: dict[int, Tokens]) -> Iterator[str]:
    root = root_key(store.fingerprint, store.owner)
    for turn, tokens in lines.items():
        path = chain_keys(root, tokens)
        for told in (one.told for one in files if one.told.turn == turn):
            start = told.start if told.kind is Kind.BLOCK else block_start(told.end)
            yield state_key(told.kind, path[start // BLOCK_TOKENS], tokens[start : told.end])
