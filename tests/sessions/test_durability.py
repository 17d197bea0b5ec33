"""An acknowledged turn survives kill -9 at any instant, and a failing disk loses no turn."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sessiond.sessions.ledger import Ledger
from tests.sessions.committer import commit_all, line_of_turns
from tests.sessions.turns import values

ROOT = Path(__file__).parent.parent.parent
KILLS = 50


def committing_child(path: Path, name: str) -> tuple[int, int]:
    """Process id, and the reading end of its stdout."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.close(reading)
        sys.stdout = os.fdopen(writing, "w")
        commit_all(path, name, 1000)
    finally:
        os._exit(1)


def killed_after(path: Path, name: str, acknowledged: int, delay: float) -> int:
    """Kill a committing process `delay` seconds after so many turns; its last acknowledged one."""
    child, reading = committing_child(path, name)
    with os.fdopen(reading) as stdout:
        said = [stdout.readline() for _ in range(acknowledged)]
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += stdout.read().splitlines()
    return max(int(line.split()[1]) for line in said if line.startswith("saved "))


@pytest.mark.proof_durability
# The forked process uses none of the threads that numeric libraries started.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_acknowledged_turn_survives_a_kill_at_any_instant(tmp_path: Path) -> None:
    path, dice = tmp_path / "ledger.sqlite", random.Random(7)
    expected: dict[str, int] = {}
    for kill in range(KILLS):
        name = f"s{kill}"
        expected[name] = killed_after(path, name, dice.randint(1, 5), dice.random() / 200)
        ledger = Ledger(path)
        assert len(ledger.load(name)) >= expected[name]
        ledger.close()
    ledger = Ledger(path)
    written = [values(turn) for turn in line_of_turns(max(expected.values()) + 1)]
    for name, last in expected.items():
        found = [values(turn) for turn in ledger.load(name)]
        # One more may be there: committed, but killed before it could be acknowledged.
        assert last <= len(found) <= last + 1
        assert found == written[: len(found)]
    ledger.check_integrity()
    ledger.close()


def traced(path: Path, trace: Path, *options: str, turns: int = 6) -> list[str]:
    """What the committer says while strace watches it."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.fail("strace is missing. It proves what reaches the disk: apt install strace")
    command = [strace, "-f", "-y", "-s", "40", "-o", str(trace), *options]
    command += [sys.executable, "-m", "tests.sessions.committer", str(path), "s", str(turns)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.proof_durability
def test_a_turn_is_synced_to_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    path, trace = tmp_path / "ledger.sqlite", tmp_path / "trace"
    said = traced(path, trace, "-e", "trace=write,fsync,fdatasync")
    assert said == [*(f"saved {number}" for number in range(1, 7)), "left 0"]
    synced, acknowledged = False, 0
    for line in trace.read_text().splitlines():
        if re.search(r"f(data)?sync\(\d+<[^>]*ledger\.sqlite-wal>\)\s+= 0", line):
            synced = True
        elif re.search(r'write\(1<[^>]*>, "saved \d+', line):
            assert synced, f"not on the disk before: {line}"
            synced, acknowledged = False, acknowledged + 1
    assert acknowledged == 6


@pytest.mark.proof_durability
@pytest.mark.parametrize("call", ["fsync,fdatasync", "pwrite64"])
def test_a_failing_disk_makes_turns_wait_and_none_is_lost(tmp_path: Path, call: str) -> None:
    path, trace = tmp_path / "ledger.sqlite", tmp_path / "trace"
    # The first calls create the file; soon after these, six in a row fail.
    traced(tmp_path / "other.sqlite", trace, "-e", f"trace={call}", turns=0)
    first = len(re.findall(r"^\d+ +(?:pwrite64|f(?:data)?sync)\(", trace.read_text(), re.M)) + 3
    fault = f"inject={call}:error=EIO:when={first}..{first + 5}"
    said = traced(path, trace, "-e", f"trace={call}", "-e", fault, turns=20)
    assert "(INJECTED)" in trace.read_text()
    assert any(line.startswith("waits") for line in said)
    assert any(line.startswith("saved") for line in said)
    assert said[-1] == "left 0"
    ledger = Ledger(path)
    expected = [values(turn) for turn in line_of_turns(20)]
    assert [values(turn) for turn in ledger.load("s")] == expected
    ledger.close()
