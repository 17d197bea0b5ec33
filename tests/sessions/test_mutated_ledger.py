"""A changed ledger is told in words, with the way out, or read as it is; it never crashes.

SQLite has no checksum over its pages: a flipped letter inside a text stays a letter. What is told
apart is said in `docs/behaviour.md`; here it is counted.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from sessiond.errors import LedgerError, SessionNotFound
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.schema import SessionRecord
from tests.proof import record
from tests.sessions.turns import make_turn, values

SESSIONS, TURNS = 3, 4
SAID = "canary"
Shown = dict[str, list[dict[str, object]]]


def write(path: Path) -> None:
    ledger = Ledger(path)
    for number in range(SESSIONS):
        session = SessionRecord.new(f"s{number}", 1.0, pinned_front=("clock",))
        for turn in range(1, TURNS + 1):
            said = f"{number} {turn} {SAID} " * 100
            made = make_turn(turn, turn - 1 or None, said, prompt=range(300), replied=range(40))
            ledger.commit(session, made)
    ledger.close()


def read(path: Path) -> tuple[Shown, list[LedgerError]]:
    """All that can be had of it, and what was told of the rest. Anything else is a crash."""
    shown: Shown = {}
    told: list[LedgerError] = []
    try:
        ledger = Ledger(path)
    except LedgerError as error:
        return {}, [error]
    try:
        for name in [session.name for session in ledger.sessions()]:
            try:
                shown[name] = [values(turn) for turn in ledger.load(name)]
            except LedgerError as error:
                told.append(error)
            except SessionNotFound:
                # It is listed: the index over the names is damaged, which the check below tells.
                shown[name] = []
        ledger.outlines()
        ledger.fronts(8)
        ledger.check_integrity()
    except LedgerError as error:
        told.append(error)
    finally:
        ledger.close()
    return shown, told


def changed(file: bytes, chance: random.Random) -> bytes:
    how, at = chance.randrange(6), chance.randrange(len(file))
    if how == 0:
        return file[:at]
    if how == 1:
        page = at // 4096 * 4096
        return file[:page] + bytes(4096) + file[page + 4096 :]
    if how == 2:
        return file[:at] + chance.randbytes(64) + file[at + 64 :]
    data = bytearray(file)
    for _ in range(1 if how < 5 else 20):
        data[chance.randrange(200 if how == 3 else len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def prove(folder: Path, count: int) -> Counter[str]:
    path, chance, seen = folder / "ledger.sqlite", random.Random(13), Counter[str]()
    write(path)
    sound, whole = path.read_bytes(), read(path)
    assert not whole[1]
    for _ in range(count):
        for beside in folder.glob("ledger.sqlite*"):
            beside.unlink()
        path.write_bytes(changed(sound, chance))
        shown, told = read(path)
        for error in told:
            assert error.hint, f"no way out is told: {error}"
            assert str(path) in error.message
            assert SAID not in error.message
        assert told or [] not in shown.values()
        if told:
            seen["told"] += 1
        else:
            seen["as it was" if shown == whole[0] else "another text or number"] += 1
    return seen


def test_a_mutated_ledger_is_told_or_read_as_it_is(state_dir: Path) -> None:
    """1. Change the ledger. 2. Read all of it. Result: it is read, or told with the way out."""
    seen = prove(state_dir, 150)
    assert seen["told"] > 50
    assert seen["as it was"] > 0


@pytest.mark.proof_durability
@pytest.mark.timeout(3600)
def test_no_mutated_ledger_of_many_crashes(state_dir: Path) -> None:
    seen = prove(state_dir, 5_000)
    record("mutated ledgers", files=5_000, crashes=0, seen=dict(seen))


def test_a_damaged_log_costs_the_turns_in_it_and_no_other(state_dir: Path) -> None:
    """1. Copy a ledger whose last turns are in its write-ahead log. 2. Flip a bit of the log.

    Result: the turns in front of the bit are there, word for word: the log has checksums.
    """
    path = state_dir / "ledger.sqlite"
    write(path)
    ledger = Ledger(path)
    session = ledger.sessions()[0]
    for turn in range(TURNS + 1, TURNS + 9):
        ledger.commit(session, make_turn(turn, turn - 1, "more " * 200))
    files = {file.name: file.read_bytes() for file in state_dir.glob("ledger.sqlite*")}
    right = [values(turn) for turn in ledger.load(session.name)]
    ledger.close()
    log, chance, lengths = files["ledger.sqlite-wal"], random.Random(17), set[int]()
    for number in range(40):
        copy = state_dir / f"copy {number}"
        copy.mkdir()
        for name, content in files.items():
            if not name.endswith("-shm"):
                (copy / name).write_bytes(content)
        at = chance.randrange(len(log))
        flipped = log[:at] + bytes([log[at] ^ 4]) + log[at + 1 :]
        (copy / "ledger.sqlite-wal").write_bytes(flipped)
        again = Ledger(copy / "ledger.sqlite")
        found = [values(turn) for turn in again.load(session.name)]
        assert found == right[: len(found)]
        assert len(found) >= TURNS
        again.check_integrity()
        again.close()
        lengths.add(len(found))
    assert len(lengths) > 3
