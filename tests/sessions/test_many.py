"""Many lines at once: each says what it would say alone, whoever shares the context with it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from sessiond.engine import active
from sessiond.errors import DecodeFailed
from sessiond.metrics import SUSPENDED
from sessiond.sessions import lander
from sessiond.sessions.turn import Spoken
from tests.rig import Daemon, Reply
from tests.sessions.kinds import CONTRASTS, FRONT, KINDS, chat, control, rig_of


class Agents:
    """Agents that talk at the same time; every reply is compared with a control."""

    def __init__(self, kind: str, count: int, front: str = FRONT) -> None:
        self.kind = kind
        self.messages = {
            f"agent {n}": chat(f"I am agent {n}. " * 4, front=front) for n in range(count)
        }

    async def round(self, daemon: Daemon, length: int = 8, ignore_eos: bool = False) -> list[Reply]:
        replies = await asyncio.gather(
            *(
                daemon.say(name, asked, max_tokens=length, ignore_eos=ignore_eos)
                for name, asked in self.messages.items()
            )
        )
        for name, reply in zip(self.messages, replies, strict=True):
            asked = self.messages[name]
            assert reply.text == control(self.kind, asked, length, ignore_eos=ignore_eos)
            self.messages[name] = [
                *asked,
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": "Go on, please."},
            ]
        return replies


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("agents", "lines"), [(3, 2), (3, 4), (20, 4)])
async def test_from_the_second_round_on_only_new_tokens_are_evaluated(
    state_dir: Path, kind: str, agents: int, lines: int
) -> None:
    rig = rig_of(kind, state_dir, lines=lines)
    talk = Agents(kind, agents)
    async with rig.daemon() as daemon:
        await talk.round(daemon)
        for _ in range(2):
            before = {name: len(asked) for name, asked in talk.messages.items()}
            replies = await talk.round(daemon)
            assert len(before) == agents
            for reply in replies:
                assert reply.report.prefilled_tokens <= NEW_TOKENS + 1
                assert reply.report.miss is None


NEW_TOKENS = len("<|im_end|>\n<|im_start|>user\nGo on, please.<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("kind", KINDS)
async def test_lines_that_outgrow_the_context_wait_for_one_another_and_none_fails(
    state_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "RESERVE_TOKENS", 16)
    monkeypatch.setattr(lander, "RESERVE_TOKENS", 16)
    before, length = SUSPENDED._value.get(), 200
    rig = rig_of(kind, state_dir, lines=3, n_ctx=480)
    talk = Agents(kind, 3, front="")
    async with rig.daemon() as daemon:
        slow(daemon)
        replies = await talk.round(daemon, length=length, ignore_eos=True)
    assert [reply.report.completion_tokens for reply in replies] == [length] * 3
    if kind != "recurrent":
        assert SUSPENDED._value.get() > before


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_requests_for_the_same_turn_at_once_are_children_of_their_own(
    state_dir: Path, kind: str
) -> None:
    async with rig_of(kind, state_dir).daemon() as daemon:
        first = await daemon.say("talk", chat("Hello"), max_tokens=6)
        talk = chat("Hello", first.text, "And now?")
        replies = await asyncio.gather(*(daemon.say("talk", talk, max_tokens=6) for _ in range(4)))
        assert {reply.text for reply in replies} == {control(kind, talk, 6)}
        turns = await daemon.lifecycle.turns("talk")
        assert sorted(turn.turn for turn in turns) == [1, 2, 3, 4, 5]
        assert [turn.parent for turn in turns] == [None, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_first_requests_of_a_new_session_at_once_are_one_session(
    state_dir: Path, kind: str
) -> None:
    rig = rig_of(kind, state_dir)
    async with rig.daemon() as daemon:
        await asyncio.gather(
            *(daemon.say("new", chat(text), max_tokens=6) for text in ("One", "Two", "Three"))
        )
    async with rig.daemon() as daemon:
        (summary,) = await daemon.lifecycle.summaries()
        assert (summary.turns, summary.lines) == (3, 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_decode_in_the_middle_changes_no_reply(state_dir: Path, kind: str) -> None:
    talk = Agents(kind, 3)
    async with rig_of(kind, state_dir).daemon() as daemon:
        await talk.round(daemon)
        failing = Failing(daemon, after=12)
        await talk.round(daemon, length=12)
        assert failing.failed


def slow(daemon: Daemon) -> None:
    """A step takes long enough for others to land beside it."""
    context = daemon.context._context
    decode = context.decode_rows

    def decode_rows(rows: object) -> None:
        time.sleep(0.002)
        decode(rows)  # type: ignore[arg-type]

    context.decode_rows = decode_rows  # type: ignore[method-assign]


class Failing:
    """Lets one decode of many lines fail as llama.cpp's does when its memory is in doubt."""

    def __init__(self, daemon: Daemon, after: int) -> None:
        self.failed = False
        self._left = after
        context = daemon.context._context
        self._decode = context.decode_rows
        context.decode_rows = self._decode_rows  # type: ignore[method-assign]

    def _decode_rows(self, rows: object) -> None:
        self._left -= 1
        if not self._left:
            self.failed = True
            raise DecodeFailed("llama_decode returned -3.")
        self._decode(rows)  # type: ignore[arg-type]


async def test_a_client_that_leaves_takes_only_its_own_line_with_it(state_dir: Path) -> None:
    talk = Agents("hybrid", 2)
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        leaving = await daemon.open("leaving", chat("Bye"), max_tokens=400)
        staying = asyncio.create_task(talk.round(daemon, length=60))
        await anext(leaving.events)
        await leaving.events.aclose()
        await staying
        assert (await daemon.say("leaving", chat("Bye"), max_tokens=4)).report.saved


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_prompt_that_waits_for_cells_holds_up_no_idle_session(
    state_dir: Path, leaves: bool
) -> None:
    """Nor anybody at all, once its client has left."""
    rig = rig_of("attention", state_dir, lines=3, n_ctx=1200)
    async with rig.daemon() as daemon:
        await daemon.say("idle", chat("Hi", front=""), max_tokens=4)
        slow(daemon)
        long = await daemon.open("long", chat("Go on.", front=""), max_tokens=900, ignore_eos=True)
        async for event in long.events:
            if isinstance(event, Spoken):
                break
        waiting = await daemon.open("waits", chat("x" * 700, front=""), max_tokens=50)
        for _ in range(9999):
            if daemon.lifecycle._floor.landing.locked():
                break
            await asyncio.sleep(0.001)
        async with asyncio.timeout(20):
            assert (await daemon.lifecycle.park("idle")).state == "disk"
            await daemon.lifecycle.delete("idle")
            if leaves:
                await waiting.events.aclose()
                await daemon.say("short", chat("Hi", front=""), max_tokens=4)
                assert (await daemon.lifecycle.summary("short")).turns == 1
        assert any(turn.session == "long" for turn in daemon.lifecycle._turns.values())
        await long.events.aclose()
        if not leaves:
            assert [event async for event in waiting.events]
