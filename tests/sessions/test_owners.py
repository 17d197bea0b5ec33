"""Sessions of one owner share what the model has read; of another owner they find nothing.

The same prompt is said by two sessions of alice, one of bob and one of the house. What is reused
is counted: a prompt that hits nothing tells by its time that nobody else has said it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sessiond.engine.landing import Landing
from sessiond.engine.sequence import Owner, whose
from sessiond.errors import StateMissing
from sessiond.sessions.rules import Rules
from sessiond.sessions.transcript import Chat, read_chat
from sessiond.sessions.turn import Finished, SessionRef, TurnReport, TurnRequest
from sessiond.store.found import Stored
from tests.rig import Daemon, Rig
from tests.rig.rig import GREEDY
from tests.sessions.kinds import CONTRASTS, KINDS, MEMORIES, chat, prompt_of, rig_of
from tests.sessions.talk import checked

each_kind = pytest.mark.parametrize("kind", KINDS)
ASKED = chat("Where is the key of the shed?")
OTHERS = ("bob/one", "mine", "alic/one", "alice.x/one")
"""Those who may not find what alice's sessions have read; "mine" is the house's."""


async def said(daemon: Daemon, kind: str, session: str) -> TurnReport:
    """One turn with the prompt that all say; its reply is that of a context of its own."""
    return (await checked(daemon, kind, session, ASKED)).report


@asynccontextmanager
async def alone_on_disk(rig: Rig, kind: str) -> AsyncGenerator[Daemon, None]:
    """A daemon with an empty context, and what one session of alice has said on its disk."""
    async with rig.daemon() as daemon:
        await said(daemon, kind, "alice/one")
    async with rig.daemon() as daemon:
        yield daemon


def assert_found_nothing(report: TurnReport) -> None:
    assert (report.cached_tokens, report.restored_tokens, report.source) == (0, 0, "new")
    assert report.prefilled_tokens == report.prompt_tokens
    assert report.miss is None


def assert_went_on(report: TurnReport) -> None:
    assert (report.prefilled_tokens, report.cached_tokens) == (1, report.prompt_tokens - 1)


@each_kind
async def test_what_is_in_the_context_is_found_by_its_owner_only(
    state_dir: Path, kind: str
) -> None:
    async with rig_of(kind, state_dir, lines=8).daemon() as daemon:
        await said(daemon, kind, "alice/one")
        for other in OTHERS:
            assert_found_nothing(await said(daemon, kind, other))
        assert_went_on(await said(daemon, kind, "alice/two"))
        assert_went_on(await said(daemon, kind, "bob/two"))
        assert_went_on(await said(daemon, kind, "mine too"))


@each_kind
async def test_what_is_on_disk_is_found_by_its_owner_only(state_dir: Path, kind: str) -> None:
    async with alone_on_disk(rig_of(kind, state_dir, lines=8), kind) as daemon:
        for other in OTHERS:
            assert_found_nothing(await said(daemon, kind, other))
        report = await said(daemon, kind, "alice/two")
        assert_went_on(report)
        assert report.restored_tokens == report.cached_tokens > 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if MEMORIES[kind].needs_snapshot])
async def test_what_is_in_the_ring_is_found_by_its_owner_only(state_dir: Path, kind: str) -> None:
    rig = rig_of(kind, state_dir, lines=8)
    async with rig.daemon() as daemon:
        await said(daemon, kind, "alice/one")
        await daemon.lifecycle.park("alice/one")
        find, prompt = daemon.machine.checkpoints.find, prompt_of(ASKED)
        assert find(Owner("any", 0, "alice"), prompt)
        assert [find(Owner("any", 0, owner), prompt) for owner in ("", "bob")] == [[], []]
        for other in OTHERS:
            assert_found_nothing(await said(daemon, kind, other))
        assert_went_on(await said(daemon, kind, "alice/two"))


async def test_a_state_in_one_piece_is_found_by_its_owner_only(state_dir: Path) -> None:
    """It can only be gone on from at its end."""
    rig = rig_of("attention", state_dir, lines=8)
    rig.whole = True
    async with rig.daemon() as daemon:
        first = await daemon.say("alice/one", ASKED)
    longer = [*ASKED, {"role": "assistant", "content": first.text}, *chat("And?", front="")]
    async with rig.daemon() as daemon:
        assert_found_nothing((await daemon.say("bob/one", longer)).report)
        assert (await daemon.say("alice/one", longer)).report.restored_tokens > 0


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_a_killed_daemon_finds_what_was_saved_for_its_owner(
    state_dir: Path, kind: str
) -> None:
    rig = rig_of(kind, state_dir, lines=8)
    async with rig.daemon(kill=True) as daemon:
        await said(daemon, kind, "alice/one")
        await daemon.machine.saver.save_all()
    async with rig.daemon() as daemon:
        assert_found_nothing(await said(daemon, kind, "bob/one"))
        assert (await said(daemon, kind, "alice/one")).restored_tokens > 0


@pytest.mark.parametrize("kind", CONTRASTS)
async def test_each_owner_has_files_of_its_own_and_a_removal_takes_those_only(
    state_dir: Path, kind: str
) -> None:
    rig = rig_of(kind, state_dir)

    def stored(daemon: Daemon, owner: str) -> Stored:
        return daemon.machine.store.of(owner).lookup(prompt_of(ASKED))

    async with rig.daemon() as daemon:
        for session in ("alice/one", "bob/one", "mine"):
            await said(daemon, kind, session)
    async with rig.daemon() as daemon:
        keys = [
            {block.key for block in stored(daemon, owner).blocks} for owner in ("alice", "bob", "")
        ]
        assert all(keys)
        assert len(set.union(*keys)) == sum(map(len, keys))
        await daemon.lifecycle.delete("alice/one")
        assert stored(daemon, "alice") == Stored()
        assert stored(daemon, "carol") == Stored()
        for session in ("bob/one", "mine"):
            assert_went_on(await said(daemon, kind, session))
        assert_found_nothing(await said(daemon, kind, "alice/one"))


async def test_a_session_that_another_owner_has_does_not_keep_the_removed_ones_files(
    state_dir: Path,
) -> None:
    """Who shares a line is asked among the owner's sessions: bob's twin, in the context and in the
    ledger, holds nothing of alice's, and alice's other session keeps what it shares.
    """
    async with rig_of("attention", state_dir).daemon() as daemon:
        store = daemon.machine.store.of("alice")
        for session in ("alice/one", "alice/two", "bob/one"):
            await said(daemon, "attention", session)
        for session in ("alice/one", "alice/two"):
            await daemon.lifecycle.park(session)
        await daemon.lifecycle.delete("alice/one")
        assert store.lookup(prompt_of(ASKED)).tokens > 0
        await daemon.lifecycle.delete("alice/two")
        assert store.lookup(prompt_of(ASKED)) == Stored()


async def test_what_was_saved_before_there_were_owners_is_the_houses(state_dir: Path) -> None:
    """A plain name is the house's, and so are its keys in the store."""
    rig = rig_of("attention", state_dir)
    async with rig.daemon() as daemon:
        await said(daemon, "attention", "old")
    async with rig.daemon() as daemon:
        assert daemon.machine.store.owner == ""
        assert daemon.machine.store.lookup(prompt_of(ASKED)).tokens > 0
        assert (await daemon.lifecycle.summary("old")).owner == ""
        assert_went_on(await said(daemon, "attention", "new"))


async def test_the_engine_copies_no_cells_from_one_owner_to_another(state_dir: Path) -> None:
    """Whoever planned it."""
    async with rig_of("attention", state_dir).daemon() as daemon:
        await said(daemon, "attention", "alice/one")
        (held,) = [view for view in await daemon.machine.engine.views() if len(view.tokens)]
        assert whose(held.owner) == "alice"
        lengths = {}
        for owner in ("bob", "", "alice"):
            landing = Landing(
                seq=next(seq for seq in range(4) if seq != held.seq),
                position=20,
                source=held.seq,
                keep=20,
                owner=Owner("other", 1, owner),
            )
            try:
                await daemon.machine.engine.restore(landing, held.tokens, iter(()))
            except StateMissing:
                lengths[owner] = 0
            else:
                views = await daemon.machine.engine.views()
                lengths[owner] = len(views[landing.seq].tokens)
        assert lengths == {"bob": 0, "": 0, "alice": 20}


# --- sessions without a name, retries, sub-agents


async def turn(
    daemon: Daemon, ref: SessionRef, messages: list[dict[str, str]], key: str | None = None
) -> Finished:
    request = TurnRequest(ref, read_chat(messages), GREEDY, idempotency_key=key)
    opened = await daemon.lifecycle.open(request)
    events = [event async for event in opened.events]
    assert isinstance(events[-1], Finished)
    return events[-1]


async def test_an_unnamed_session_is_gone_on_with_by_its_owner_only(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        first = await turn(daemon, SessionRef(owner="alice"), ASKED)
        longer = [
            *ASKED,
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And the other one?"},
        ]
        foreign = await turn(daemon, SessionRef(owner="bob"), longer)
        house = await turn(daemon, SessionRef(), longer)
        own = await turn(daemon, SessionRef(owner="alice"), longer)
        names = {one.name: one.turns for one in await daemon.lifecycle.summaries()}
        assert names == {
            f"alice/{first.report.session}": 2,
            f"bob/{foreign.report.session}": 1,
            house.report.session: 1,
        }
        assert own.report.session == first.report.session
        assert_found_nothing(foreign.report)
        assert_found_nothing(house.report)
        assert own.report.cached_tokens > 0


@pytest.mark.parametrize("name", ["talk", None])
async def test_the_same_idempotency_key_of_two_owners_is_two_turns(
    state_dir: Path, name: str | None
) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:

        async def once(owner: str) -> TurnReport:
            full = name and (f"{owner}/{name}" if owner else name)
            ref = SessionRef(full, owner=owner)
            return (await turn(daemon, ref, ASKED, key="k-1")).report

        reports = [await once(owner) for owner in ("alice", "bob", "", "alice", "bob", "")]
        assert reports[:3] == reports[3:]
        assert len(await daemon.lifecycle.summaries()) == 3
        for report in reports:
            assert_found_nothing(report)


async def test_who_comes_back_for_an_abandoned_turn_must_be_its_owner(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond.sessions.turn_task.LINGER_S", 60.0)
    async with rig_of("attention", state_dir).daemon() as daemon:
        async with daemon.lifecycle._floor.landing:
            requests = {
                owner: TurnRequest(SessionRef(owner=owner), read_chat(ASKED), GREEDY)
                for owner in ("alice", "bob")
            }
            left = await daemon.lifecycle.open(requests["alice"])
            reading = asyncio.ensure_future(anext(left.events))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await left.events.aclose()
            foreign = await daemon.lifecycle.open(requests["bob"])
            own = await daemon.lifecycle.open(requests["alice"])
            assert own.session == left.session
            assert foreign.session != left.session
            assert foreign.session.startswith("bob/")
        for opened in (foreign, own):
            assert [event async for event in opened.events]


# --- fronts that stay

FRONTS = Rules(pinned_front=("clock",))


def clocked(hour: str, asked: str = "What now?") -> list[dict[str, str]]:
    return chat(asked, front=f"You are terse. It is {hour} now. " + "Rules apply. " * 8)


async def front_of(daemon: Daemon, session: str) -> str:
    tree = await daemon.lifecycle._register.tree(session)
    content = tree[1].content
    assert isinstance(content, Chat)
    return content.messages[0].content


async def test_a_front_stays_for_its_owners_sessions_only(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir, lines=8)
    rig.rules = FRONTS
    async with rig.daemon() as daemon:
        await daemon.say("alice/one", clocked("10:02"))
        await daemon.say("alice/two", clocked("10:05"))
        await daemon.say("bob/one", clocked("10:06"))
        await daemon.say("mine", clocked("10:07"))
        assert "10:02" in await front_of(daemon, "alice/two")
        assert "10:06" in await front_of(daemon, "bob/one")
        assert "10:07" in await front_of(daemon, "mine")
        await daemon.lifecycle.delete("alice/one")
        await daemon.lifecycle.delete("alice/two")
    async with rig.daemon() as daemon:
        expected = {"alice/three": "10:11", "bob/two": "10:06", "mine too": "10:07"}
        for session, front in expected.items():
            await daemon.say(session, clocked("10:11"))
            assert front in await front_of(daemon, session)


async def test_the_same_front_of_two_owners_is_forgotten_for_one_of_them(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir, lines=8)
    rig.rules = FRONTS
    async with rig.daemon() as daemon:
        for session in ("alice/one", "bob/one", "mine"):
            await daemon.say(session, clocked("10:02"))
        await daemon.lifecycle.delete("alice/one")
        for session, front in {"alice/two": "10:09", "bob/two": "10:02", "mine 2": "10:02"}.items():
            await daemon.say(session, clocked("10:09"))
            assert front in await front_of(daemon, session)


# --- the timing side channel, as counts


@each_kind
@pytest.mark.parametrize("between", ["nothing", "stop"])
async def test_a_guess_at_what_another_said_costs_the_same_right_or_wrong(
    state_dir: Path, kind: str, between: str
) -> None:
    """bob guesses a secret of alice. The control: alice's own guess is told by what is reused."""
    rig = rig_of(kind, state_dir, lines=8)
    right, wrong = chat("The code is 4711."), chat("The code is 1234.")
    daemon = Daemon(rig)
    await daemon.start()
    await daemon.say("alice/diary", right)
    if between == "stop":
        await daemon.stop()
        daemon = Daemon(rig)
        await daemon.start()
    guess = (await daemon.say("bob/one", right)).report
    blind = (await daemon.say("carol/one", wrong)).report
    control = (await daemon.say("alice/two", right)).report
    await daemon.stop()
    assert (guess.cached_tokens, guess.restored_tokens) == (0, 0)
    assert (blind.cached_tokens, blind.restored_tokens) == (0, 0)
    assert guess.prefilled_tokens == blind.prefilled_tokens
    assert_went_on(control)
