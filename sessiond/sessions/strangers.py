"""Clients that send no identity: their session is the one whose transcript they extend."""

from __future__ import annotations

import logging

from sessiond.errors import LedgerError
from sessiond.sessions.register import UNNAMED, Register
from sessiond.sessions.rules import Rules
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import Content

logger = logging.getLogger(__name__)
_RECENT = 32


async def find_unnamed(owner: str, content: Content, register: Register, rules: Rules) -> str:
    """The unnamed session of `owner` that `content` extends furthest, among those used last; ""
    for none.
    """
    best, depth = "", 0
    own = (record for record in register.records if record.owner == owner)
    for record in [record for record in own if _is_unnamed(record)][:_RECENT]:
        try:
            tree = await register.tree(record.name)
        except LedgerError as error:
            logger.warning("An unnamed session is passed over: %s", error)
            continue
        pinned = register.fronts.pin(record, content, rules.pinned_front_of(record), tree)
        match = tree.match(pinned.content if pinned else content)
        extent = match.matched_messages + match.matched_characters
        if extent > depth:
            best, depth = record.name, extent
    return best


def _is_unnamed(record: SessionRecord) -> bool:
    return UNNAMED.fullmatch(record.called) is not None and not record.named
