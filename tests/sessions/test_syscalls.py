"""Any one system call of a save may fail, or be the last, and nothing is lost by it."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof import record
from tests.sessions.kinds import rig_of
from tests.sessions.saved_turn import TURNS
from tests.sessions.talk import Talk
from tests.sessions.tracing import FAULTS, Point, Saver, Told, points, saving

KIND = "hybrid+swa"
"""The kind that has all of it: blocks, snapshots and a window."""
TRIES = 5
SAMPLE = 8
"""Points of each fault in `make test`."""


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    with saving() as process:
        yield process


@pytest.fixture
def place(state_dir: Path) -> Path:
    (state_dir / "state").mkdir()
    return state_dir


def points_of(saver: Saver, place: Path) -> list[Point]:
    """Those of a save that nothing happens to."""
    (place / "state").mkdir(exist_ok=True)
    told = saver.save(place, KIND, None)
    found = points(told, place / "state")
    clear(place)
    assert told.words["saved"] and told.words["covered"] and told.words["stopped"]
    return found


def clear(place: Path) -> None:
    shutil.rmtree(place / "state")
    (place / "state").mkdir()


async def failed_at(saver: Saver, place: Path, point: Point, fault: str) -> bool:
    """Fails one call and checks what was promised. False if this save never came to the call."""
    for _ in range(TRIES):
        inject = f"inject={point.call}:{FAULTS[fault]}:when={point.number}"
        told = saver.save(place, KIND, point, "-e", inject)
        if told.injected:
            check_what_was_told(told, fault)
            await check_what_is_there(place / "state", told)
            clear(place)
            return True
        clear(place)
    return False


def check_what_was_told(told: Told, fault: str) -> None:
    words = told.words
    assert "crashed" not in words, words
    if fault == "kill":
        assert words["ended"] == -9
        return
    assert words["ended"] == 0
    assert words["saved"] or words["problem"], "a turn is not saved and nothing says why"
    assert words["unsaved"] == 0, "the next try did not save it"
    assert words["covered"] or words["failed"], "state is missing and no failure was counted"
    assert words["covered_again"], "the next try did not write it"
    assert words["stopped"]


async def check_what_is_there(directory: Path, told: Told) -> None:
    """On disk is at least what was acknowledged, it is sound, and the talk goes on from it."""
    acknowledged = TURNS + bool(told.words.get("saved") or told.words.get("unsaved") == 0)
    talk = Talk(KIND)
    async with rig_of(KIND, directory).daemon() as daemon:
        turns = [turn.turn for turn in await daemon.lifecycle.turns(talk.session)]
        assert turns in ([1, 2], [1, 2, 3])
        assert len(turns) >= acknowledged
        report = await daemon.lifecycle.verify()
        assert report.damaged == ()
        assert report.turns == len(turns)
        await talk.turns(daemon, TURNS + 2)
        said = [(m["role"], m["content"]) for m in talk.messages]
        shown = [(m.role, m.content) for m in await daemon.lifecycle.transcript(talk.session)]
        assert shown == said
        daemon.machine.store.reconcile()
        await daemon.machine.saver.save_all()
        daemon.machine.store.check_integrity()
        assert list((directory / "cache" / "incoming").iterdir()) == []


async def fail_all(saver: Saver, place: Path, chosen: list[tuple[Point, str]]) -> Counter[str]:
    """How many of each fault were injected; those never come to are counted by themselves."""
    seen: Counter[str] = Counter()
    broken: list[str] = []
    for point, fault in chosen:
        try:
            reached = await failed_at(saver, place, point, fault)
            seen[fault if reached else "not reached"] += 1
        except AssertionError as error:
            broken.append(f"{fault} at {point}: {str(error).splitlines()[0]}")
            clear(place)
    assert broken == []
    return seen


async def test_some_calls_of_a_save_fail_one_by_one(saver: Saver, place: Path) -> None:
    """1. Trace a save. 2. Save again and fail one call: killed, EIO, ENOSPC. 3. Start, go on.

    Result: what was acknowledged is there, an error was told, the next try worked.
    """
    found = points_of(saver, place)
    kinds = {point.call for point in found}
    assert {"openat", "write", "pwrite64", "fdatasync", "syncfs", "renameat"} <= kinds
    assert {point.thread for point in found} >= {"ledger_0", "store-write_0", "ring_0"}
    chance = random.Random(7)
    writing = [p for p in found if p.call not in ("fcntl", "newfstatat", "close", "pread64")]
    chosen = [(p, fault) for fault in FAULTS for p in chance.sample(writing, SAMPLE)]
    seen = await fail_all(saver, place, chosen)
    # The order of two threads may differ: now and then a call does not come up again.
    assert seen["not reached"] <= SAMPLE // 2


@pytest.mark.proof_durability
@pytest.mark.timeout(7200)
async def test_every_call_of_a_save_fails_one_by_one(saver: Saver, place: Path) -> None:
    found = points_of(saver, place)
    seen = await fail_all(saver, place, [(p, fault) for fault in FAULTS for p in found])
    record(
        "system calls of a save",
        points=len(found),
        lost=0,
        damaged_accepted=0,
        faults={fault: seen[fault] for fault in FAULTS},
        not_reached=seen["not reached"],
        calls=dict(Counter(point.call for point in found)),
    )
    assert seen["not reached"] <= len(found) // 20


SYNC = re.compile(r"(?:fsync|fdatasync)\(\d+<(?P<file>[^>]*)>")
WRITE = re.compile(r"pwrite64\(\d+<(?P<file>[^>]*)>.*, (?P<length>\d+), (?P<at>\d+)\)")


def synced_writes(trace: str, file: str) -> Iterator[tuple[bool, set[tuple[int, int]]]]:
    """Of each sync of a file: whether it succeeded, and what was written since the last one."""
    written: set[tuple[int, int]] = set()
    for line in trace.splitlines():
        if (write := WRITE.search(line)) and write["file"].endswith(file):
            written.add((int(write["at"]), int(write["length"])))
        elif (sync := SYNC.search(line)) and sync["file"].endswith(file):
            yield "(INJECTED)" not in line, written
            written = set()


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_a_sync_that_failed_is_never_believed_later(saver: Saver, place: Path, fault: str) -> None:
    """After a failed sync the system may say that pages are clean which are not on the disk.

    Result: all that was written before it is written again before the next sync, and the turn is
    acknowledged after that one only.
    """
    point = Point("ledger_0", "fdatasync", 1, "ledger.sqlite-wal")
    told = saver.save(place, KIND, point, "-e", f"inject=fdatasync:{FAULTS[fault]}:when=1")
    assert told.words["saved"] is False
    assert told.words["unsaved"] == 0
    (failed, lost), (worked, again), *_ = synced_writes(told.trace, "ledger.sqlite-wal")
    assert (failed, worked) == (False, True)
    assert lost
    assert lost <= again
