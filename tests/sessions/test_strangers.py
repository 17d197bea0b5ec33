"""Requests of clients without tools that carry a talk but have quite another system prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig import Daemon
from tests.sessions.kinds import CONTRASTS, Messages, chat, rig_of

FRONT = "You are a careful assistant with a long list of rules to follow. " * 8


async def talk(daemon: Daemon, turns: int = 3) -> Messages:
    messages = chat(front=FRONT)
    for number in range(turns):
        messages.append({"role": "user", "content": f"What about number {number}?"})
        reply = await daemon.say("talk", messages)
        messages.append({"role": "assistant", "content": reply.text})
    return messages


@pytest.mark.parametrize("kind", CONTRASTS)
@pytest.mark.parametrize("system", ["Write a title for this chat in five words.", None])
async def test_a_title_request_is_served_and_says_what_it_reads_again(
    state_dir: Path, kind: str, system: str | None
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        messages = await talk(daemon)
        front = [{"role": "system", "content": system}] if system else []
        asked = [*front, *messages[1:], {"role": "user", "content": "A title, please."}]
        aside = (await daemon.say("talk", asked, policy="append-only")).report
        assert aside.miss is not None and aside.miss.cause == "system_changed"
        (told,) = await daemon.lifecycle.explain("talk")
        assert (told.outcome, told.turn) == ("forked", aside.turn)
        later = [*messages, {"role": "user", "content": "Go on."}]
        main = (await daemon.say("talk", later, policy="append-only")).report
        assert (main.line, main.miss) == ("main", None)


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_the_same_short_reply_in_an_example_of_another_agent_is_no_edit(
    state_dir: Path, kind: str
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        first = await daemon.say("talk", chat("Is it a whale?", front=FRONT))
        example = chat("An example.", first.text, "The real one.", front="Translate. " * 30)
        assert (await daemon.say("talk", example, policy="append-only")).report.saved
