"""A store survives `kill -9`: at random moments, and at every step of its first writes."""

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

def die_at(step):
    left = [step]

    def counted(call, shorten):
        def stepped(*args, **options):
            left[0] -= 1
            if left[0] == 0 and shorten:
                call(args[0], args[1][:20_000])
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)
        return stepped

    os.write = counted(os.write, True)
    os.rename, os.unlink = counted(os.rename, False), counted(os.unlink, False)

def write_for_ever(first, step, opened):
    store = open_store(Path(sys.argv[1]), quota=3_000_000)
    os.write(opened, b"!")
    if step:
        die_at(step)
    for seed in (n % 7 for n in range(first, first + 10**6)):
        fill(store, line(700, seed), 200_000, seed)
        store.put_snapshot(line(700, seed), payload(50_000, seed))

print("ready", flush=True)
for command in sys.stdin:
    first, step, milliseconds = map(int, command.split())
    is_open, opened = os.pipe()
    child = os.fork()
    if child == 0:
        write_for_ever(first, step, opened)
    os.close(opened)
    os.read(is_open, 1)
    os.close(is_open)
    if not step:
        time.sleep(milliseconds / 1000)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
"""


@pytest.fixture
def kill_a_writer(tmp_path: Path) -> Iterator[Callable[[int, int, int], None]]:
    """Starts a process that writes, beginning with a line. It is killed in so many calls of write,
    rename and unlink or, for 0, so many milliseconds after it opened the store."""
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        assert killer.stdout.readline() == "ready\n"

        def kill(first: int, step: int, milliseconds: int) -> None:
            assert killer.stdin is not None
            assert killer.stdout is not None
            killer.stdin.write(f"{first} {step} {milliseconds}\n")
            killer.stdin.flush()
            assert killer.stdout.readline() == "killed\n"

        yield kill
        killer.stdin.close()


def test_what_is_found_after_a_kill_reads_and_verifies(
    tmp_path: Path, kill_a_writer: Callable[[int, int, int], None]
) -> None:
    """1. Kill a writer. 2. Open the store. 3. Read all that is found.
    Result, 50 times: the right bytes, within the quota before and after, and it all adds up."""
    chance = random.Random(7)
    torn = found = 0
    for kill in range(KILLS):
        kill_a_writer(kill, kill // 2 + 1 if kill % 2 else 0, chance.randrange(60))
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
    assert torn > KILLS // 5
    assert found > KILLS
