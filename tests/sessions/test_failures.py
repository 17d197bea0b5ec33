"""A failed decode takes every line out of the context; turns go on from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessiond.errors import DecodeFailed
from sessiond.sessions.turn import Spoken
from tests.rig import Daemon
from tests.sessions.kinds import KINDS, control, rig_of
from tests.sessions.talk import Talk

each_kind = pytest.mark.parametrize("kind", KINDS)


def failing(daemon: Daemon, times: int, *, after: int = 0) -> None:
    """Of the decodes to come, `after` succeed and then `times` fail."""
    context: Any = daemon.context._context
    decode, calls = context.decode_rows, iter(range(1 << 30))

    def decode_rows(rows: Any) -> None:
        if after <= next(calls) < after + times:
            raise DecodeFailed("llama_decode returned -3.")
        decode(rows)

    context.decode_rows = decode_rows


@each_kind
async def test_it_is_tried_once_more_from_disk(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk, other = Talk(kind), Talk(kind, session="other")
        await talk.turns(daemon, 1)
        await other.turns(daemon, 1)
        await daemon.machine.saver.save_all()
        failing(daemon, 1)
        standing = talk.standing
        report = (await talk.say(daemon, "Are you there?")).report
        assert (report.cached_tokens, report.miss) == (standing, None)
        standing = other.standing
        report = (await other.say(daemon, "And you?")).report
        assert report.miss is None
        assert report.cached_tokens >= standing


@each_kind
@pytest.mark.parametrize("saved", [False, True])
async def test_one_that_fails_again_changes_nothing(
    state_dir: Path, kind: str, saved: bool
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 1)
        if saved:
            await daemon.machine.saver.save_all()
        failing(daemon, 2)
        with pytest.raises(DecodeFailed):
            await talk.copy().say(daemon, "Are you there?")
        assert len(await daemon.lifecycle.turns("talk")) == 1
        report = (await talk.say(daemon, "Are you there?")).report
        assert (report.turn, report.saved) == (2, True)
        assert (report.miss is None) or not saved


@each_kind
async def test_a_reply_that_has_begun_goes_on_where_it_was(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 1)
        asked = [*talk.messages, {"role": "user", "content": "Go on."}]
        failing(daemon, 1, after=8)
        opened = await daemon.open("talk", asked, max_tokens=50, ignore_eos=True)
        said = "".join([e.text async for e in opened.events if isinstance(e, Spoken)])
        assert said == control(kind, asked, 50, ignore_eos=True)


@each_kind
async def test_a_reply_whose_decode_fails_twice_is_given_up(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 1)
        asked = [*talk.messages, {"role": "user", "content": "Go on."}]
        failing(daemon, 2, after=8)
        opened = await daemon.open("talk", asked, max_tokens=50, ignore_eos=True)
        said = []
        with pytest.raises(DecodeFailed):
            async for event in opened.events:
                said.append(event)
        assert any(isinstance(event, Spoken) for event in said)
        assert len(await daemon.lifecycle.turns("talk")) == 1
        await talk.say(daemon, "Go on.")
