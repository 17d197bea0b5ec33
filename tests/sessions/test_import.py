"""An import changes nothing until the whole file was looked at, and everything at once then."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from sessiond.errors import BodyTooLarge, Conflict, InvalidExport, InvalidRequest, LedgerError
from sessiond.sessions.ledger import Ledger
from sessiond.sessions.lifecycle import Limits
from sessiond.sessions.transcript import read_chat
from sessiond.sessions.transfer import incoming
from sessiond.sessions.transfer.report import ImportReport
from sessiond.sessions.turn import SessionChange, SessionRef, TurnRequest
from sessiond.store.store import Store
from tests.rig import Daemon
from tests.sessions.files import (
    everything,
    exported,
    file_with,
    members_of,
    sealed,
    sent,
    with_head,
    with_turns,
)
from tests.sessions.kinds import CONTRASTS, chat, rig_of
from tests.sessions.talk import Talk

GOLDEN = Path(__file__).parent / "golden" / "session-v1.sessiond"


async def take(daemon: Daemon, file: bytes, name: str | None = None, **how: Any) -> ImportReport:
    how = {"state": True, **how}
    return await daemon.lifecycle.import_session(sent(file), name, str, **how)


def unknown_tokens(file: bytes) -> bytes:
    tokens = "/////w==".replace("/////w", "AAAAAQ")  # 1 << 24, in base64
    return with_turns(members_of(file), lambda turns: turns[0].update(reply_tokens=tokens))


def nested(file: bytes) -> bytes:
    deep: object = "x"
    for _ in range(70):
        deep = [deep]
    said = {"messages": [], "template_options": [["a", deep]]}
    return with_turns(members_of(file), lambda turns: turns[-1].update(content=said))


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "no file at all": lambda file: b"",
    "cut off": lambda file: file[: len(file) // 2],
    "cut off before its end": lambda file: file[:-512],
    "altered": lambda file: file[:9000] + bytes([file[9000] ^ 1]) + file[9001:],
    "more in it": lambda file: file_with([*members_of(file), ("../../x", b"x")]),
    "newer": lambda file: with_head(members_of(file), lambda head: head.update(version=9)),
    "a bad pattern": lambda file: with_head(
        members_of(file), lambda head: head["session"].update(pinned_front=["(", "clock"])
    ),
    "a long agent": lambda file: with_head(
        members_of(file), lambda head: head["session"].update(agent="a" * 600)
    ),
    "a lying state": lambda file: sealed(members_of(file), **{"state/000001": {"turn": 99}}),
    "unknown tokens": unknown_tokens,
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_refused_file_changes_nothing(state_dir: Path, wrong: str) -> None:
    """Ledger, store and directory are byte for byte what they were."""
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 2)
        file = await exported(daemon, "talk")
        await daemon.lifecycle.park("talk")
        before = everything(state_dir)
        with pytest.raises(InvalidExport) as refused:
            await take(daemon, WRONG[wrong](file), "copy")
        assert refused.value.status == 400
        assert everything(state_dir) == before
        assert "copy" not in daemon.lifecycle._register


async def test_the_first_version_is_imported_for_ever(state_dir: Path) -> None:
    rig = rig_of("hybrid", state_dir)
    async with rig.daemon() as daemon:
        report = await take(daemon, GOLDEN.read_bytes())
        session = report.session
        assert (session.name, session.turns, session.lines) == ("golden", 3, 2)
        assert (session.policy, session.title) == ("fork", "Question 1?")
        assert report.state_taken > 0
        assert report.state_skipped == 0
        talk = Talk("hybrid", session="golden")
        transcript = await daemon.lifecycle.transcript("golden")
        talk.messages = [{"role": one.role, "content": one.content} for one in transcript]
        said = (await talk.say(daemon, "Do you remember?")).report
        assert (said.turn, said.source, said.miss) == (4, "disk", None)
        assert said.prefilled_tokens < 60


async def test_what_the_report_says(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        await Talk("hybrid").turns(daemon, 2)
        await daemon.lifecycle.update("talk", SessionChange("fork", ("clock",), pinned=True))
        file = await exported(daemon, "talk")
        states = [data for name, data in members_of(file) if name.startswith("state/")]
        report = await take(daemon, file, "copy")
        tree = await daemon.lifecycle._register.tree("copy")
        assert report.tokens == sum(len(t.prompt_tokens) + len(t.reply_tokens) for t in tree)
        assert (report.turns, report.state_taken) == (2, len(states))
        assert (report.state_bytes, report.responses_dropped) == (sum(map(len, states)), 0)
        assert (report.state_skipped, report.skipped_because) == (0, "")
        copy = report.session
        assert (copy.policy, copy.pinned_front) == ("fork", ("clock",))
        assert (copy.pinned, copy.owner) == (False, "")
        unread = await take(daemon, file, "other", state=False)
        assert (unread.state_taken, unread.skipped_because) == (0, "not asked for")


async def test_it_survives_a_kill_right_after(state_dir: Path) -> None:
    rig, talk = rig_of("hybrid", state_dir), Talk("hybrid")
    async with rig.daemon(kill=True) as daemon:
        await talk.turns(daemon, 2)
        file = await exported(daemon, "talk")
        await daemon.lifecycle.delete("talk")
        await take(daemon, file)
    async with rig.daemon() as daemon:
        standing = talk.standing
        assert (await talk.say(daemon, "Still there?")).report.cached_tokens == standing


# --- names


async def test_a_name_that_is_taken(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        file = await exported(daemon, "talk")
        before = everything(state_dir)
        read: list[int] = []

        async def counted() -> AsyncGenerator[bytes, None]:
            async for chunk in sent(file):
                read.append(len(chunk))
                yield chunk

        with pytest.raises(Conflict, match="'talk' already"):
            await daemon.lifecycle.import_session(counted(), "talk", str, state=True)
        assert read == [], "it could be said before"
        with pytest.raises(Conflict, match="'talk' already"):
            await take(daemon, file)
        assert everything(state_dir) == before


async def test_a_name_in_the_file_is_looked_at(state_dir: Path) -> None:
    def naming(name: str) -> str:
        raise InvalidRequest(f"{name!r} is no name.", param="name")

    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        file = with_head(
            members_of(await exported(daemon, "talk")),
            lambda head: head["session"].update(name="../other/x"),
        )
        with pytest.raises(InvalidRequest, match="no name"):
            await daemon.lifecycle.import_session(sent(file), None, naming, state=True)
        assert (await take(daemon, file, "good")).session.name == "good"


async def test_two_imports_of_the_same_name_at_once(state_dir: Path) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        await Talk("hybrid").turns(daemon, 2)
        file = await exported(daemon, "talk")
        tries = [take(daemon, file, "copy") for _ in range(3)]
        came = await asyncio.gather(*tries, return_exceptions=True)
        kinds = sorted(type(one).__name__ for one in came)
        assert kinds == ["Conflict", "Conflict", "ImportReport"]
        assert len(await daemon.lifecycle.turns("copy")) == 2
        assert len(daemon.lifecycle._register) == 2
        assert await daemon.lifecycle._register.count_turns() == 4


async def test_a_name_whose_first_turn_runs(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        file = await exported(daemon, "talk")
        opened = await daemon.open("new", chat("Hi"), max_tokens=40, ignore_eos=True)
        await anext(opened.events)
        with pytest.raises(Conflict):
            await take(daemon, file, "new")
        async for _ in opened.events:
            pass
        assert len(await daemon.lifecycle.turns("new")) == 1


async def test_a_turn_that_comes_meanwhile_waits_for_the_state(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_of("hybrid", state_dir).daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 2)
        file = await exported(daemon, "talk")
        await daemon.lifecycle.delete("talk")
        putting, go_on = asyncio.Event(), asyncio.Event()
        loop, put = asyncio.get_running_loop(), Store.put_block

        def slow(self: Store, *given: Any) -> int:
            loop.call_soon_threadsafe(putting.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
            return put(self, *given)

        monkeypatch.setattr(Store, "put_block", slow)
        importing = asyncio.create_task(take(daemon, file))
        await asyncio.wait_for(putting.wait(), 20)
        standing = talk.standing
        saying = asyncio.create_task(talk.say(daemon, "Are you there?"))
        with pytest.raises(Conflict):
            await daemon.lifecycle.delete("talk")
        await asyncio.sleep(0)
        assert not saying.done()
        go_on.set()
        await importing
        report = (await saying).report
        assert (report.turn, report.cached_tokens) == (3, standing)


# --- responses


async def test_ids_of_responses_that_are_known_are_dropped(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        for number in (1, 2):
            await respond(daemon, f"resp_{number}", number)
        file = await exported(daemon, "talk")
        copied = await take(daemon, file, "copy")
        assert copied.responses_dropped == 2
        assert (await daemon.lifecycle.response("resp_1")).session == "talk"
        both = await asyncio.gather(take(daemon, file, "third"), take(daemon, file, "fourth"))
        assert [one.responses_dropped for one in both] == [2, 2]
        await daemon.lifecycle.delete("talk")
        again = await asyncio.gather(take(daemon, file, "fifth"), take(daemon, file, "sixth"))
        assert sorted(one.responses_dropped for one in again) == [0, 2]
        found = await daemon.lifecycle.response("resp_2")
        assert found.session in ("fifth", "sixth")
        assert await daemon.lifecycle._register.count_turns() == 10


async def respond(daemon: Daemon, response: str, number: int) -> None:
    messages = chat(*["x"] * (2 * number - 1))
    ref = SessionRef("talk", named=True)
    request = TurnRequest(ref, read_chat(messages), response_id=response)
    opened = await daemon.lifecycle.open(request)
    async for _ in opened.events:
        pass


# --- room


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_more_state_than_the_quota_is_skipped_and_said(state_dir: Path, kind: str) -> None:
    async with rig_of(kind, state_dir / "there").daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, 3)
        file = await exported(daemon, "talk")
    states = [data for name, data in members_of(file) if name.startswith("state/")]
    rig = rig_of(kind, state_dir / "here")
    rig.quota = len(states[0]) + 3000
    async with rig.daemon() as daemon:
        report = await take(daemon, file)
        assert report.state_taken == 1
        assert report.state_skipped == len(states) - 1
        assert report.skipped_because == "the store is full"
        assert 0 < daemon.machine.store.usage().bytes <= rig.quota
        assert report.turns == 3
        assert (await talk.say(daemon, "And?")).report.turn == 4


async def test_no_state_makes_room_for_another_of_the_same_file(state_dir: Path) -> None:
    """There is room for the blocks, and for none of the snapshots that come after them."""
    async with rig_of("hybrid", state_dir / "there").daemon() as daemon:
        talk = Talk("hybrid")
        await talk.turns(daemon, 3)
        file = await exported(daemon, "talk")
        tree = await daemon.lifecycle._register.tree("talk")
        blocks = daemon.machine.store.lookup(tree.path_tokens(3)).blocks
    rig = rig_of("hybrid", state_dir / "here")
    rig.quota = sum(block.bytes for block in blocks) + 200
    async with rig.daemon() as daemon:
        report = await take(daemon, file)
        assert (report.state_taken, report.skipped_because) == (len(blocks), "the store is full")
        tree = await daemon.lifecycle._register.tree("talk")
        kept = daemon.machine.store.lookup(tree.path_tokens(3))
        assert [block.key for block in kept.blocks] == [block.key for block in blocks]


async def test_a_disk_without_room(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    rig.limits = Limits(drain=5.0, keep_free=1 << 60)
    async with rig.daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        file = await exported(daemon, "talk")
        before = everything(state_dir)
        with pytest.raises(BodyTooLarge, match="no room"):
            await take(daemon, file, "copy")
        assert everything(state_dir) == before


async def test_a_ledger_that_refuses(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns come in one transaction: all of them, or none and no session either."""
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 2)
        file = await exported(daemon, "talk")
        before = daemon.machine.store.usage()

        def fail(self: Ledger, *given: Any) -> None:
            raise LedgerError("No room.")

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "create", fail)
            with pytest.raises(LedgerError):
                await take(daemon, file, "copy")
        assert "copy" not in daemon.lifecycle._register
        assert daemon.machine.store.usage() == before
        assert (await take(daemon, file, "copy")).turns == 2


async def test_what_is_nested_too_deeply_is_refused_as_a_whole(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 2)
        file = nested(await exported(daemon, "talk"))
        with pytest.raises(InvalidExport):
            await take(daemon, file, "copy")
        assert "copy" not in daemon.lifecycle._register
        assert await daemon.lifecycle._register.count_turns() == 2


# --- the file on its way


async def test_a_sender_that_leaves_leaves_nothing(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        file = await exported(daemon, "talk")
        before = everything(state_dir)

        async def broken() -> AsyncGenerator[bytes, None]:
            yield file[:5000]
            raise ConnectionError

        with pytest.raises(ConnectionError):
            await daemon.lifecycle.import_session(broken(), "copy", str, state=True)
        assert everything(state_dir) == before


async def test_nothing_is_ever_written_where_a_file_says(state_dir: Path) -> None:
    outside = state_dir
    async with rig_of("attention", outside / "daemon").daemon() as daemon:
        await Talk("attention").turns(daemon, 1)
        file = await exported(daemon, "talk")
        before = everything(outside)
        for name in ("../x", f"{outside}/y", "..\\x"):
            with pytest.raises(InvalidExport):
                await take(daemon, file_with([*members_of(file)[:2], (name, b"x")]), "copy")
        assert everything(outside) == before


async def test_what_a_killed_daemon_left_is_removed_at_the_start(state_dir: Path) -> None:
    left = state_dir / f"{incoming._PREFIX}abc{incoming._SUFFIX}"
    left.write_bytes(b"x")
    other = state_dir / "import-notes.txt"
    other.write_bytes(b"mine")
    async with rig_of("attention", state_dir).daemon():
        assert not left.exists()
        assert other.read_bytes() == b"mine"


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from sessiond.sessions.ledger import Ledger
from sessiond.store.store import Store
from tests.sessions.files import sent
from tests.sessions.kinds import rig_of

where, file, name = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), sys.argv[3]

def die(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    owner, method = name.split(".")
    async with rig_of("hybrid", where).daemon() as daemon:
        setattr({"Ledger": Ledger, "Store": Store}[owner], method, die)
        await daemon.lifecycle.import_session(sent(file, 4096), "copy", str, state=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("instant", "there"),
    [("Ledger.known_responses", False), ("Ledger.create", False), ("Store.put_snapshot", True)],
)
def test_a_kill_during_an_import_leaves_nothing_half(
    state_dir: Path, instant: str, there: bool
) -> None:
    """
    1. `kill -9` before the turns are written, or between two states.
    Result: no session, or one with all its turns; no file of the import is left in any case.
    """
    file = state_dir / "file"
    file.write_bytes(GOLDEN.read_bytes())
    where = state_dir / "daemon"
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(where), str(file), instant],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
    assert not list(where.glob("import-*"))

    async def look() -> None:
        async with rig_of("hybrid", where).daemon() as daemon:
            turns = await daemon.lifecycle._register.count_turns()
            assert turns == (3 if there else 0)
            assert ("copy" in daemon.lifecycle._register) == there
            daemon.machine.store.check_integrity()
            report = await take(daemon, file.read_bytes(), "again")
            assert report.turns == 3

    asyncio.run(look())


def test_a_file_is_for_its_owner_only(state_dir: Path) -> None:
    """Where the system gives no file without a name, it has one for a moment: not for others."""

    async def look() -> None:
        place = incoming.Incoming(state_dir, 0)
        async with place.received(sent(b"x" * 5000, 100)) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
            assert os.fstat(file.fileno()).st_size == 5000
            assert everything(state_dir) == {}

    before = os.umask(0)
    try:
        asyncio.run(look())
    finally:
        os.umask(before)
