"""An import of whom nobody vouches for: what was said, and nothing that acts where it is shown."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from sessiond.errors import BodyTooLarge, InvalidExport
from sessiond.sessions.responses import ResponseNotFound
from sessiond.sessions.transfer.importing import UNTRUSTED
from tests.sessions.files import exported, members_of, sent, with_head
from tests.sessions.kinds import rig_of
from tests.sessions.talk import Talk
from tests.sessions.test_import import respond, take


async def test_what_an_owner_brings_is_what_was_said(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await respond(daemon, "resp_1", 1)
        file = await exported(daemon, "talk")
        states = [name for name, _ in members_of(file) if name.startswith("state/")]
        await daemon.lifecycle.delete("talk")
        report = await take(daemon, file, "copy", trusted=False)
        assert (report.turns, report.state_taken, report.responses_dropped) == (1, 0, 1)
        assert (report.state_skipped, report.skipped_because) == (len(states), UNTRUSTED)
        with pytest.raises(ResponseNotFound):
            await daemon.lifecycle.response("resp_1")
        unasked = await take(daemon, file, "other", trusted=False, state=False)
        assert unasked.skipped_because == "not asked for"


async def test_a_title_can_be_shown(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        file = members_of(await exported(daemon, "talk"))
        odd = with_head(file, lambda head: head["session"].update(title="\x1b[2J\x00t"))
        assert (await take(daemon, odd, "copy")).session.title == " [2J t"
        odd = with_head(file, lambda head: head["session"].update(agent="\x1b]0;x\x07"))
        with pytest.raises(InvalidExport, match="agent"):
            await take(daemon, odd, "other")


async def test_a_file_that_is_announced_too_large_is_not_read(state_dir: Path) -> None:
    read: list[bytes] = []

    async def counted() -> AsyncGenerator[bytes, None]:
        async for chunk in sent(b"x"):
            read.append(chunk)
            yield chunk

    async with rig_of("attention", state_dir).daemon() as daemon:
        with pytest.raises(BodyTooLarge, match="no room"):
            await daemon.lifecycle.import_session(counted(), "x", str, state=True, size=1 << 60)
    assert read == []
