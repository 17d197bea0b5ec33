"""`kill -9` of the whole daemon while clients talk: nothing that was acknowledged is lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.daemon import Daemon
from tests.daemon.clients import Crowd
from tests.daemon.fake_daemon import FakeDaemon
from tests.proof import record
from tests.sessions.kinds import KINDS, control

TOKENS = 8
FRONT = "You are terse. " * 20
BOUNDED, FULL = 2, 40
"""Kills of each memory kind: 10 in `make test`, 200 in full."""
SMOL_BOUNDED, SMOL_FULL = 2, 25
LEAST, DEADLINE_S = 3, 30.0
SETTLED_S = 1.0
"""The daemon begins to save so long after the last turn."""


class Kills:
    """What was seen over all kills of one daemon."""

    def __init__(self, daemon: Daemon, crowd: Crowd, kind: str | None, seed: int) -> None:
        self.daemon, self.crowd, self.kind = daemon, crowd, kind
        self.chance = random.Random(seed)
        self.seen: Counter[str] = Counter()

    def cycle(self) -> None:
        """Start, look at everything, talk, be killed."""
        self.daemon.start()
        self.look()
        self.crowd.talk(self._die)
        self.seen["kills"] += 1
        for asked, text in self.crowd.heard():
            if self.kind is not None:
                assert text == control(self.kind, asked, TOKENS)
        self.seen["written, not heard"] += self.crowd.check_ledger()

    def look(self) -> None:
        """What the daemon says of itself after a start is what the clients know."""
        http = self.daemon.http
        report = http.post("/v1/verify").raise_for_status().json()
        assert report["damaged"] == []
        assert report["unsaved_turns"] == 0
        self.seen["missing files noticed"] += len(report["missing"])
        turns = 0
        for client in self.crowd.clients:
            for name, session in client.sessions.items():
                if not session.turns:
                    continue
                listed = http.get(f"/v1/sessions/{name}/turns").raise_for_status().json()["turns"]
                assert {turn["turn"] for turn in listed} == session.turns.keys()
                shown = http.get(f"/v1/sessions/{name}/transcript").raise_for_status().json()
                line = tuple((m["role"], m["content"]) for m in shown["messages"])
                assert line in {turn.line for turn in session.turns.values()}
                turns += len(listed)
        assert report["turns"] == turns

    def _die(self, hush: Callable[[], None]) -> None:
        """After some turns: at any moment; right after an acknowledgement; or while it saves."""
        (how,) = self.chance.choices(["any", "acknowledged", "saving"], [2, 2, 1])
        self._wait_for(LEAST if how == "any" else self.chance.randint(LEAST, 20))
        if how == "any":
            time.sleep(self.chance.random() / 2)
        if how == "saving":
            hush()
            time.sleep(SETTLED_S + self.chance.random() / 4)
        self.seen[how] += 1
        self.daemon.kill()

    def _wait_for(self, count: int) -> None:
        """So many acknowledgements more; fewer on a machine that is very busy."""
        first, deadline = self.crowd.acknowledged, time.monotonic() + DEADLINE_S
        while self.crowd.acknowledged < first + count and time.monotonic() < deadline:
            time.sleep(0.0005)


def kills_of(kind: str, state: Path, count: int) -> Kills:
    daemon = FakeDaemon(state, ["--fake-memory", kind, "--fake-latency", "1"])
    crowd = Crowd(daemon.url, state, 3, KINDS.index(kind), tokens=TOKENS, front=FRONT)
    return killed(Kills(daemon, crowd, kind, seed=KINDS.index(kind)), count)


def killed(kills: Kills, count: int) -> Kills:
    """So many kills, and a last start that finds everything."""
    try:
        for _ in range(count):
            kills.cycle()
        kills.daemon.start()
        kills.look()
        assert kills.daemon.stop() == 0
    finally:
        kills.daemon.kill()
    assert kills.crowd.acknowledged >= LEAST * count
    return kills


@pytest.mark.parametrize("kind", KINDS)
def test_kills_under_load_lose_no_acknowledged_turn(kind: str, tmp_path: Path) -> None:
    """1. Three clients append, regenerate, fork, delete and rename. 2. kill -9. 3. Start.

    Result, again and again: every acknowledged turn is there word for word, nothing is there that
    nobody sent, no reply is another than that of a context that was never interrupted.
    """
    kills_of(kind, tmp_path / "state", BOUNDED)


@pytest.mark.proof_durability
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_kills_lose_no_acknowledged_turn(kind: str, tmp_path: Path) -> None:
    began = time.monotonic()
    kills = kills_of(kind, tmp_path / "state", FULL)
    assert set(kills.crowd.ops) >= {"append", "again", "fork", "delete", "rename"}
    tell(f"kill -9, {kind}", kills, time.monotonic() - began)


def smol_kills(model: Path, state: Path, count: int) -> Kills:
    daemon = Daemon(model, state, ["--max-active", "2", "--model-threads", "1"])
    crowd = Crowd(daemon.url, state, 2, 5, tokens=4, front="You are brief.")
    return killed(Kills(daemon, crowd, None, seed=5), count)


def test_kills_of_a_real_model_lose_no_acknowledged_turn(smol_path: Path, tmp_path: Path) -> None:
    smol_kills(smol_path, tmp_path / "state", SMOL_BOUNDED)


@pytest.mark.proof_durability
@pytest.mark.timeout(7200)
def test_twenty_five_kills_of_a_real_model(smol_path: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    kills = smol_kills(smol_path, tmp_path / "state", SMOL_FULL)
    tell("kill -9, SmolLM2", kills, time.monotonic() - began)


def tell(proof: str, kills: Kills, seconds: float) -> None:
    record(
        proof,
        kills=kills.seen["kills"],
        acknowledged=kills.crowd.acknowledged,
        lost=0,
        never_sent=0,
        written_not_heard=kills.seen["written, not heard"],
        missing_files_noticed=kills.seen["missing files noticed"],
        requests=dict(kills.crowd.ops),
        seconds=round(seconds),
    )
