"""Ledgers and states of every released format are opened by this version, and lose nothing.

`golden/ledger-N.sql` are dumps of what the code of version N has written: its own daemon with a
fake engine, a talk with a side line, a miss, a raw completion, an unnamed session, tools.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sessiond.errors import LedgerError
from sessiond.sessions import backup
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.schema import MIGRATIONS
from tests.sessions.kinds import Messages, rig_of

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = list(range(1, len(MIGRATIONS)))
ROOT = Path(__file__).parents[2]
SYSTEM = {"role": "system", "content": "You are terse."}
each_version = pytest.mark.parametrize("version", VERSIONS)


def make(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((GOLDEN / f"ledger-{version}.sql").read_text())
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)


def rows(path: Path, table: str) -> list[dict[str, object]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        found = connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")  # noqa: S608
        return [dict(row) for row in found]


def content(path: Path, like: Path) -> list[list[dict[str, object]]]:
    """Sessions and turns, in the columns that `like` has."""
    kept = [rows(like, table)[0].keys() for table in ("session", "turn")]
    tables = zip(("session", "turn"), kept, strict=True)
    return [[{key: row[key] for key in keys} for row in rows(path, name)] for name, keys in tables]


def test_there_is_a_golden_ledger_of_every_version_but_the_last() -> None:
    found = {int(path.stem.partition("-")[2]) for path in GOLDEN.glob("ledger-*.sql")}
    assert found >= set(VERSIONS)


@each_version
def test_every_session_turn_token_and_miss_is_there(tmp_path: Path, version: int) -> None:
    old, path = tmp_path / "old.sqlite", tmp_path / "ledger.sqlite"
    make(old, version)
    make(path, version)
    ledger = Ledger(path)
    assert {session.name for session in ledger.sessions()} >= {"talk", "raw", "tools"}
    assert len(ledger.sessions()) == 4
    assert ledger.check_integrity() == 7
    talk = ledger.load("talk")
    assert [(turn.number, turn.parent) for turn in talk] == [(1, None), (2, 1), (3, 1), (4, 2)]
    missed = talk[4].stats.miss
    assert missed is not None
    assert missed.cause == "not_saved"
    assert missed.tokens > 0
    outlines = ledger.outlines()
    for session in ledger.sessions():
        tree = ledger.load(session.name)
        lengths = {outline.number: outline.length for outline in outlines[session.id]}
        assert lengths == {turn.number: tree.length(turn.number) for turn in tree}
        assert all(len(tree.path_tokens(leaf)) == tree.length(leaf) for leaf in tree.leaves())
    ledger.close()
    assert content(path, old) == content(old, old)


@each_version
async def test_the_next_turn_extends_each_talk(state_dir: Path, version: int) -> None:
    """Result: it goes on from the last turn with the very tokens that the old version has kept."""
    make(state_dir / "ledger.sqlite", version)
    async with rig_of("attention", state_dir).daemon() as daemon:
        for name, leaf in (("talk", 4), ("tools", 1)):
            tree = await daemon.lifecycle._register.tree(name)
            known = tree.path_tokens(leaf)
            said = await daemon.lifecycle.transcript(name)
            messages: Messages = [{"role": m.role, "content": m.content} for m in said]
            assert messages[0] == SYSTEM
            messages.append({"role": "user", "content": "And now?"})
            tools = [
                {
                    "type": "function",
                    "function": {
                        "name": "ls",
                        "description": "Lists.",
                        "parameters": {"type": "object", "properties": {}},
                    },
                }
            ]
            given = tools if name == "tools" and version > 1 and _has_tools(tree) else []
            report = (await daemon.say(name, messages, tools=given)).report
            assert report.source == ("ledger" if name == "talk" else "fork"), "no state was kept"
            assert report.saved
            turns = {turn.turn: turn for turn in await daemon.lifecycle.turns(name)}
            assert turns[report.turn].parent == leaf
            longer = (await daemon.lifecycle._register.tree(name)).path_tokens(report.turn)
            assert longer[: len(known)].tolist() == known.tolist()
        report = (await daemon.say("raw", "Once upon a time, there was", named=False)).report
        assert report.saved


def _has_tools(tree: object) -> bool:
    return bool(tree[1].content.tools)  # type: ignore[index]


@each_version
def test_a_copy_is_made_before_and_is_the_only_one(tmp_path: Path, version: int) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    path.parent.mkdir()
    make(path, version)
    (tmp_path / "state" / "ledger.sqlite.v0.bak").touch()
    os.umask(before := os.umask(0))
    old = tmp_path / "old.sqlite"
    make(old, version)
    Ledger(path).close()
    (copy,) = backup.copies(path)
    assert copy.name == f"ledger.sqlite.v{version}.bak"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert content(copy, old) == content(old, old)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert os.umask(before) == before
    written = copy.stat().st_mtime_ns
    Ledger(path).close()
    assert copy.stat().st_mtime_ns == written, "an up-to-date ledger is not copied"
    assert {p.name for p in path.parent.iterdir()} == {path.name, copy.name}


def test_a_new_ledger_is_not_copied(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    assert not list(backup.copies(tmp_path / "ledger.sqlite"))


def test_without_room_for_the_copy_nothing_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path, 2)
    before = rows(path, "turn")

    def refuse(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(LedgerError, match="No space left"):
        patch.setattr(backup, "_sync", refuse)
        Ledger(path)
    assert rows(path, "turn") == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert not list(tmp_path.glob("*.bak*"))
    ledger = Ledger(path)
    assert ledger.check_integrity() == 7
    ledger.close()


@each_version
def test_a_newer_ledger_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path, version)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="A newer sessiond wrote it"):
        Ledger(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


KILLER = """
import os, signal, sqlite3, sys
from pathlib import Path
from sessiond.sessions import ledger, schema

real = schema.migrate

def dies_at(step):
    left = [step]

    def migrate(connection):
        def stepped(_statement):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        connection.set_trace_callback(stepped)
        real(connection)
        connection.set_trace_callback(None)
        print(step - left[0], flush=True)
    return migrate

print("ready", flush=True)
for command in sys.stdin:
    path, step = command.rsplit(" ", 1)
    child = os.fork()
    if child == 0:
        ledger.migrate = dies_at(int(step))
        ledger.Ledger(Path(path)).close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else "done", flush=True)
"""


@pytest.fixture
def killer() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", KILLER]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
    assert process.returncode not in (-signal.SIGKILL,)


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_a_kill_at_any_statement_of_a_migration_loses_nothing(
    state_dir: Path, killer: subprocess.Popen[str], version: int
) -> None:
    """For each statement: kill -9 before it, then open. Result: all is there, and up to date."""
    assert killer.stdin is not None
    assert killer.stdout is not None
    old = state_dir / "old.sqlite"
    make(old, version)
    step, outcome = 0, "killed\n"
    while outcome == "killed\n":
        step += 1
        path = state_dir / f"ledger-{step}.sqlite"
        make(path, version)
        killer.stdin.write(f"{path} {step}\n")
        killer.stdin.flush()
        outcome = killer.stdout.readline()
        ledger = Ledger(path)
        assert ledger.check_integrity() == 7
        ledger.close()
        assert content(path, old) == content(old, old)
        assert len(list(backup.copies(path))) == 1
    assert step > 3
    assert outcome == f"{step - 1}\n"


@pytest.mark.parametrize("table", ["session", "turn", "outline", "front", "numbering"])
def test_an_old_ledger_becomes_what_a_new_one_is(tmp_path: Path, table: str) -> None:
    fresh, path = tmp_path / "fresh.sqlite", tmp_path / "ledger.sqlite"
    make(path, 1)
    shapes = []
    for file in (fresh, path):
        Ledger(file).close()
        with closing(sqlite3.connect(file)) as connection:
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            shapes.append(columns)
    assert shapes[0] == shapes[1] != []
