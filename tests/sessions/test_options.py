"""What a template is told may change within a conversation, and nothing is read again for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessiond.engine.fake import CHATML
from sessiond.engine.sampling import Ending
from sessiond.sessions.transcript import read_chat
from sessiond.sessions.turn import Finished, SessionRef, TurnReport, TurnRequest
from tests.rig import Daemon
from tests.rig.rig import GREEDY
from tests.sessions.kinds import CONTRASTS, Messages, chat, rig_of

IN_FRONT = "Effort: {{ reasoning_effort }}\n" + CHATML
AT_END = CHATML + "{% if enable_thinking is false %}<think></think>{% endif %}"
SAID = ("One.", "Two.", "Three.")


async def say(daemon: Daemon, messages: Messages, **options: Any) -> TurnReport:
    content, ending = read_chat(messages, [], options), Ending(max_tokens=50)
    request = TurnRequest(SessionRef("t"), content, GREEDY, ending, policy="append-only")
    opened = await daemon.lifecycle.open(request)
    finished = [event async for event in opened.events if isinstance(event, Finished)]
    return finished[0].report


async def written(daemon: Daemon, turn: int) -> str:
    tree = await daemon.lifecycle._register.tree("t")
    pieces = (daemon.machine.engine.model.piece(int(t)) for t in tree.path_tokens(turn))
    return b"".join(pieces).decode()


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_what_stands_at_the_end_of_a_prompt_holds_from_now_on(
    state_dir: Path, kind: str
) -> None:
    """As with thinking of Qwen's models."""
    rig = rig_of(kind, state_dir, replies=SAID)
    rig.template = AT_END
    async with rig.daemon() as daemon:
        messages = chat("A?")
        await say(daemon, messages, enable_thinking=True)
        messages += chat("B?", front="")
        messages.insert(2, {"role": "assistant", "content": "One."})
        report = await say(daemon, messages, enable_thinking=False)
        assert (report.miss, report.turn, report.source) == (None, 2, "resident")
        assert report.prefilled_tokens < 60
        text = await written(daemon, 2)
        assert text.count("<think></think>") == 1
        assert text.endswith("<think></think>Two.")


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_what_stands_in_the_front_is_what_the_line_began_with(
    state_dir: Path, kind: str
) -> None:
    """As with the effort of gpt-oss: another one is for the next conversation."""
    rig = rig_of(kind, state_dir, replies=SAID)
    rig.template = IN_FRONT
    async with rig.daemon() as daemon:
        messages = chat("A?")
        await say(daemon, messages, reasoning_effort="low")
        messages += [{"role": "assistant", "content": "One."}, *chat("B?", front="")]
        report = await say(daemon, messages, reasoning_effort="high")
        assert (report.miss, report.turn, report.source) == (None, 2, "resident")
        assert (await written(daemon, 2)).startswith("Effort: low\n")
        other = await say(daemon, chat("C?"), reasoning_effort="high")
        assert (await written(daemon, other.turn)).startswith("Effort: high\n")
