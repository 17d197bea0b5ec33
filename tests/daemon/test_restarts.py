"""Stops and starts, again and again: every session comes back and goes on as if nothing was."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.daemon import Answer, DaemonFailed
from tests.daemon.clients import ledger_lines, line_of
from tests.daemon.fake_daemon import FakeDaemon
from tests.proof import record
from tests.rig import Daemon
from tests.sessions.kinds import FRONT, KINDS, Messages, chat, control, rig_of
from tests.sessions.talk import Talk

SESSIONS = 20
BOUNDED, FULL = 3, 25
TOKENS = 6
GREEDY: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0}
LONG, ENDLESS = 800, 100_000
"""Tokens of a reply that goes on for a few seconds, and of one that goes on for minutes."""


@dataclass
class Caller:
    """One session, as its client knows it; each reply must be that of an uninterrupted context."""

    name: str
    kind: str
    messages: Messages = field(default_factory=list)
    standing: int = 0

    def turn(self, daemon: FakeDaemon) -> Answer:
        if not self.messages:
            self.messages = chat(front=f"{self.name}. {FRONT}")
        asked = [*self.messages, {"role": "user", "content": f"And {len(self.messages)}?"}]
        answer = daemon.chat(self.name, asked, **GREEDY)
        assert answer.text == control(self.kind, asked, TOKENS)
        assert answer.report["saved"] is True
        assert answer.report["miss"] is None
        if self.standing:
            new = answer.prompt_tokens - self.standing
            assert answer.evaluated <= new + 1
        ended = answer.usage["completion_tokens"] < TOKENS
        self.standing = answer.prompt_tokens + answer.usage["completion_tokens"] - (not ended)
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer


def storm(kind: str, state: Path, restarts: int) -> tuple[int, int]:
    """Turns and sessions that came back from disk, over so many clean restarts of 20 sessions."""
    daemon = FakeDaemon(state, ["--fake-memory", kind, "--sessions-max-active", "8"])
    callers = [Caller(f"s{number}", kind) for number in range(SESSIONS)]
    turns = from_disk = 0
    try:
        for cycle in range(restarts + 1):
            daemon.start()
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(lambda caller: caller.turn(daemon), callers))
            turns += len(answers)
            if cycle:
                assert {answer.report["source"] for answer in answers} == {"disk"}
                from_disk += len(answers)
            assert daemon.stop() == 0
    finally:
        daemon.kill()
    there = ledger_lines(state)
    for caller in callers:
        lines = [turn.line for turn in there[caller.name].values()]
        assert len(lines) == restarts + 1
        assert lines[-1] == line_of(caller.messages)
    return turns, from_disk


def test_every_session_comes_back_after_every_restart(tmp_path: Path) -> None:
    """Twenty sessions, a turn each between two stops; eight have room at once.

    Result: every turn comes from disk, evaluates at most its new tokens and one more, and says what
    a context says that evaluates everything anew.
    """
    assert storm("hybrid+swa", tmp_path / "state", BOUNDED) == (80, 60)


@pytest.mark.proof_durability
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_five_restarts_of_twenty_sessions(kind: str, tmp_path: Path) -> None:
    turns, from_disk = storm(kind, tmp_path / "state", FULL)
    record(
        f"clean restarts, {kind}",
        restarts=FULL,
        sessions=SESSIONS,
        turns=turns,
        restored=from_disk,
        evaluated_anew=0,
    )


@pytest.fixture
def daemon(tmp_path: Path) -> Any:
    daemon = FakeDaemon(tmp_path / "state", ["--fake-memory", "hybrid+swa", "--fake-latency", "2"])
    daemon.start()
    yield daemon
    daemon.kill()


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


class Reader:
    """A long reply, read in a thread of its own; `heard` are its pieces so far."""

    def __init__(self, daemon: FakeDaemon, name: str, tokens: int) -> None:
        self.heard: list[str] = []
        self.answer: Answer | None = None
        self.failure: Exception | None = None
        self._asked = chat("Go on for ever.")
        self._thread = threading.Thread(target=self._read, args=(daemon, name, tokens))
        self._thread.start()
        until(lambda: len(self.heard) > 5)

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    @property
    def line(self) -> tuple[tuple[str, str], ...]:
        return line_of([*self._asked, {"role": "assistant", "content": "".join(self.heard)}])

    def _read(self, daemon: FakeDaemon, name: str, tokens: int) -> None:
        wanted = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        try:
            self.answer = daemon.chat(name, self._asked, self.heard.append, **wanted)
        except (DaemonFailed, httpx.TransportError) as error:
            self.failure = error


def test_two_sigterms_in_a_row_leave_the_ledger_whole(daemon: FakeDaemon) -> None:
    """1. Two talks, one of them with a reply that goes on. 2. SIGTERM, and at once another.

    Result: it ends at once and says so by its code; what was acknowledged is there after a start.
    """
    caller = Caller("talk", "hybrid+swa")
    caller.turn(daemon)
    caller.turn(daemon)
    endless = Reader(daemon, "endless", ENDLESS)
    daemon.signal(signal.SIGTERM)
    until(lambda: daemon.http.get("/health").json()["status"] == "draining")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 128 + signal.SIGTERM
    endless.wait()
    there = ledger_lines(daemon.state)
    assert [turn.line for turn in there["talk"].values()][-1] == line_of(caller.messages)
    daemon.start()
    assert daemon.http.post("/v1/verify").json()["damaged"] == []
    asked = [*caller.messages, {"role": "user", "content": "Still there?"}]
    assert daemon.chat("talk", asked, **GREEDY).text == control("hybrid+swa", asked, TOKENS)


def test_a_daemon_that_stood_still_goes_on(daemon: FakeDaemon) -> None:
    """SIGSTOP in the middle of a reply, SIGCONT. Result: the reply goes on, is right, and saved."""
    reader = Reader(daemon, "long", LONG)
    daemon.signal(signal.SIGSTOP)
    until(lambda: _state_of(daemon.pid) == "T")
    daemon.signal(signal.SIGCONT)
    reader.wait()
    assert reader.answer is not None, reader.failure
    assert reader.answer.report["saved"] is True
    assert daemon.stop() == 0
    (turn,) = ledger_lines(daemon.state)["long"].values()
    assert turn.line == reader.line
    right = control("hybrid+swa", chat("Go on for ever."), LONG, ignore_eos=True)
    assert reader.answer.text == right


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]


@pytest.mark.parametrize("kind", ["attention", "hybrid+swa"])
async def test_a_clock_that_goes_back_loses_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Talk, stop, start, while the clock goes back a year at every step of it.

    Result: turns keep their order, come from disk, and the talk is what it was.
    """
    real, steps = time.time_ns, itertools.count()
    year = 365 * 24 * 3600 * 10**9
    behind = 0

    def step_back() -> None:
        nonlocal behind
        behind = next(steps) * year

    monkeypatch.setattr(time, "time_ns", lambda: real() - behind)
    monkeypatch.setattr(time, "time", lambda: (real() - behind) / 1e9)
    rig, talk = rig_of(kind, tmp_path), Talk(kind)
    for started in range(3):
        step_back()
        async with rig.daemon() as running:
            step_back()
            await talk.turns(running, 1)
            step_back()
            await talk.turns(running, 1)
            await all_is_there(running, talk)
            assert started == 0 or talk.replies[-2].report.source == "disk"
    created = [turn.created for turn in await turns_of(rig.daemon, talk)]
    assert created == sorted(created, reverse=True)


async def all_is_there(daemon: Daemon, talk: Talk) -> None:
    numbers = [turn.turn for turn in await daemon.lifecycle.turns(talk.session)]
    assert numbers == list(range(1, len(talk.replies) + 1))
    shown = [(m.role, m.content) for m in await daemon.lifecycle.transcript(talk.session)]
    assert shown == [(m["role"], m["content"]) for m in talk.messages]
    daemon.machine.store.check_integrity()
    assert (await daemon.lifecycle.verify()).clean


async def turns_of(start: Callable[[], Any], talk: Talk) -> Any:
    async with start() as daemon:
        return await daemon.lifecycle.turns(talk.session)
