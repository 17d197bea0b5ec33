"""Requests without a session name go on with the unnamed session whose transcript they extend."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.errors import LedgerError
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.tree import SessionTree
from tests.rig import Daemon
from tests.sessions.kinds import Messages, chat, rig_of
from tests.sessions.talk import Talk, checked


async def ask(daemon: Daemon, messages: Messages | str) -> tuple[str, int]:
    """Session and turn."""
    report = (await checked(daemon, "hybrid", None, messages)).report
    return report.session, report.turn


async def longer(daemon: Daemon, name: str, question: str) -> Messages:
    transcript = await daemon.lifecycle.transcript(name)
    said: Messages = [{"role": m.role, "content": m.content} for m in transcript]
    return [*said, {"role": "user", "content": question}]


async def test_what_extends_a_transcript_goes_on_with_it(state_dir: Path) -> None:
    rig = rig_of("hybrid", state_dir)
    async with rig.daemon() as daemon:
        first, _ = await ask(daemon, chat("One?"))
        second, _ = await ask(daemon, chat("Two?"))
        assert first != second
        assert await ask(daemon, await longer(daemon, first, "More?")) == (first, 2)
        assert await ask(daemon, await longer(daemon, second, "More?")) == (second, 2)
    async with rig.daemon() as daemon:
        assert await ask(daemon, await longer(daemon, first, "And more?")) == (first, 3)


async def test_what_extends_nothing_is_a_new_session(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        first, _ = await ask(daemon, chat("One?"))
        again, turn = await ask(daemon, chat("One?"))
        assert (again != first, turn) == (True, 1)
        changed = await longer(daemon, first, "More?")
        changed[0]["content"] = "Another front."
        assert (await ask(daemon, changed))[0] not in (first, again)


async def test_the_deepest_match_wins(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        deep, _ = await ask(daemon, chat("One?"))
        await ask(daemon, await longer(daemon, deep, "More?"))
        shallow, _ = await ask(daemon, chat("One?"))
        assert shallow != deep
        assert await ask(daemon, await longer(daemon, deep, "And more?")) == (deep, 3)


async def test_raw_prompts_match_by_their_text(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        reply = await checked(daemon, "hybrid", None, "Once upon a time")
        prompt = "Once upon a time" + reply.text + " there was"
        assert await ask(daemon, prompt) == (reply.report.session, 2)


@pytest.mark.parametrize("named", [True, False])
async def test_a_session_with_a_name_is_never_taken(state_dir: Path, named: bool) -> None:
    """Neither a person's nor an agent's own, whatever it is called."""
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        for name in ("talk", "chat-about-cats"):
            talk = Talk("hybrid", session=name)
            await talk.turns(daemon, 1)
            if not named:
                await daemon.say(f"{name}-agent", chat("Question 1?"), named=False)
            asked = [*talk.messages, {"role": "user", "content": "More?"}]
            session, turn = await ask(daemon, asked)
            assert (session.startswith("chat-"), turn) == (True, 1)
            assert session not in (name, f"{name}-agent")


async def test_the_name_that_was_given_can_be_used(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        name, _ = await ask(daemon, chat("One?"))
        asked = await longer(daemon, name, "More?")
        report = (await daemon.say(name, asked, named=False)).report
        assert (report.session, report.turn) == (name, 2)


async def test_one_that_cannot_be_read_is_passed_over(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of("hybrid", state_dir)
    async with rig.daemon() as daemon:
        damaged, _ = await ask(daemon, chat("One?"))
        sound, _ = await ask(daemon, chat("Two?"))
        asked = await longer(daemon, sound, "More?")
    load = Ledger.load

    def reading(self: Ledger, name: str) -> SessionTree:
        if name == damaged:
            raise LedgerError(f"A turn of {name} is damaged.")
        return load(self, name)

    monkeypatch.setattr(Ledger, "load", reading)
    async with rig.daemon() as daemon:
        assert await ask(daemon, asked) == (sound, 2)
        reasons = {s.name: s.reason for s in await daemon.lifecycle.summaries()}
        assert "damaged" in reasons[damaged]
        assert reasons[sound] == ""
        with pytest.raises(LedgerError):
            await daemon.lifecycle.summary(damaged)
