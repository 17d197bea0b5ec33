"""A store survives `kill -9` at any moment of a write."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store.samples import disk_bytes, line, open_store, payload

KILLS = 50
QUOTA = 3_000_000
ROOT = Path(__file__).parents[2]

KILLER = """
import os, signal, sys, time
from pathlib import Path
from tests.store.samples import fill, line, open_store, payload

def write_for_ever(first):
    store = open_store(Path(sys.argv[1]), quota=3_000_000)
    for seed in (n % 7 for n in range(first, first + 10**6)):
        fill(store, line(700, seed), 200_000, seed)
        store.put_snapshot(line(700, seed), payload(50_000, seed))

print("ready", flush=True)
for command in sys.stdin:
    first, milliseconds = command.split()
    child = os.fork()
    if child == 0:
        write_for_ever(int(first))
    time.sleep(float(milliseconds) / 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
"""


@pytest.fixture
def kill_a_writer(tmp_path: Path) -> Iterator[Callable[[int, float], None]]:
    """Starts a process that writes, beginning with a line, and kills it so many ms later."""
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        assert killer.stdout.readline() == "ready\n"

        def kill(first: int, milliseconds: float) -> None:
            assert killer.stdin is not None
            assert killer.stdout is not None
            killer.stdin.write(f"{first} {milliseconds}\n")
            killer.stdin.flush()
            assert killer.stdout.readline() == "killed\n"

        yield kill
        killer.stdin.close()


def test_what_is_found_after_a_kill_reads_and_verifies(
    tmp_path: Path, kill_a_writer: Callable[[int, float], None]
) -> None:
    """1. Kill a writer at a random moment. 2. Open the store. 3. Read all that is found.
    Result, 50 times: the right bytes, within the quota before and after, and it all adds up."""
    chance = random.Random(7)
    torn = found = 0
    for kill in range(KILLS):
        kill_a_writer(kill, chance.uniform(5, 90))
        torn += bool(list((tmp_path / "cache" / "incoming").glob("*")))
        assert disk_bytes(tmp_path) <= QUOTA
        store = open_store(tmp_path, quota=QUOTA)
        assert store.usage().bytes <= QUOTA
        for seed in range(7):
            stored = store.lookup(line(700, seed))
            for block in stored.blocks:
                right = payload(200_000, seed * 10_000 + block.start)
                assert bytes(store.read(block.key)) == right
            for snapshot in stored.snapshots:
                assert bytes(store.read(snapshot.key)) == payload(50_000, seed)
            found += len(stored.blocks) + len(stored.snapshots)
        store.reconcile()
        store.check_integrity()
        assert store.usage().quarantined == 0
        store.close()
    assert torn > 0
    assert found > KILLS
