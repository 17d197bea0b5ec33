"""A turn is found again by the id of the response that it was: saved or not, until forgotten."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.sampling import Ending
from sessiond.sessions import schema
from sessiond.sessions.journal import Journal
from sessiond.sessions.ledger import Ledger, TurnRefused
from sessiond.sessions.parts import Called, Part, Said, Thought
from sessiond.sessions.responses import ResponseNotFound, sealed, stored_response
from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.transcript import Chat, Message, digest, read_chat
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.sessions.turn import Finished, SessionRef, TurnRequest
from tests.rig import Daemon
from tests.sessions.kinds import rig_of
from tests.sessions.test_unsaved import unwritable
from tests.sessions.turns import make_turn, text_turn, user

A, B = SessionRecord.new("a", 1.0), SessionRecord.new("b", 2.0)


def answered(turn: Turn, response: str, *parts: Part) -> Turn:
    return replace(turn, response_id=response, response=sealed('{"k":1}', parts, 5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger(path, busy_timeout=0)
    yield opened
    opened.close()


def test_the_ledger_finds_a_turn_by_its_response(ledger: Ledger) -> None:
    ledger.commit(A, make_turn(1))
    ledger.commit(A, answered(make_turn(2, 1), "resp_1"))
    ledger.commit(B, answered(make_turn(1), "resp_2"))
    assert ledger.answered("resp_1") == ("a", 2)
    assert ledger.answered("resp_2") == ("b", 1)
    assert ledger.answered("resp_3") is None
    ledger.update(replace(B, name="other"), ["name"])
    assert ledger.answered("resp_2") == ("other", 1)


def test_an_id_is_given_once(ledger: Ledger) -> None:
    ledger.commit(A, answered(make_turn(1), "resp_1"))
    with pytest.raises(TurnRefused):
        ledger.commit(B, answered(make_turn(1), "resp_1"))
    assert ledger.answered("resp_1") == ("a", 1)


def test_a_forgotten_response_leaves_its_turn(ledger: Ledger) -> None:
    ledger.commit(A, answered(make_turn(1), "resp_1"))
    assert ledger.forget_response("resp_1")
    assert not ledger.forget_response("resp_1")
    assert ledger.answered("resp_1") is None
    (turn,) = ledger.load("a")
    assert (turn.response_id, turn.response, turn.reply) == (None, None, "ok")


def test_a_removed_session_takes_its_responses_along(ledger: Ledger) -> None:
    ledger.commit(A, answered(make_turn(1), "resp_1"))
    ledger.delete("a")
    assert ledger.answered("resp_1") is None


def test_a_ledger_from_before_responses_is_brought_up_to_date(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        older = schema.MIGRATIONS[:3]
        patch.setattr(schema, "MIGRATIONS", older)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            schema.migrate(connection)
            assert schema.version(connection) == 3
            connection.execute(
                "INSERT INTO session (id, name, named, title, created, last_used, pinned)"
                " VALUES ('i', 'a', 1, 't', 1.0, 1.0, 0)"
            )
            fields = schema.turn_row("i", make_turn(1)).model_dump(
                exclude={"response_id", "response", "opened", "replaces"}
            )
            marks = ", ".join(f":{name}" for name in fields)
            connection.execute(
                f"INSERT INTO turn ({', '.join(fields)}) VALUES ({marks})",  # noqa: S608
                fields,
            )
    ledger = Ledger(path)
    (turn,) = ledger.load("a")
    assert (turn.reply, turn.response_id) == ("ok", None)
    session = ledger.sessions()[0]
    ledger.commit(session, answered(make_turn(2, 1), "resp_1"))
    assert ledger.answered("resp_1") == ("a", 2)
    assert len(ledger.outlines()["i"]) == 2
    assert ledger.check_integrity() == 2
    ledger.close()


def test_a_turn_that_waits_is_found_and_forgotten(ledger: Ledger, path: Path) -> None:
    journal = Journal(ledger)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert not journal.commit(A, answered(make_turn(1), "resp_1"))
        assert not journal.commit(A, answered(make_turn(2, 1), "resp_2"))
        assert journal.answered("resp_1") == ("a", 1)
        assert journal.forget_response("resp_1")
        assert journal.answered("resp_1") is None
    assert journal.retry() == 0
    assert [turn.response_id for turn in ledger.load("a")] == [None, "resp_2"]
    assert journal.answered("resp_2") == ("a", 2)
    assert journal.forget_response("resp_2")
    assert not journal.forget_response("resp_2")


words = st.text(max_size=12)
parts = st.lists(
    st.builds(Said, words) | st.builds(Thought, words) | st.builds(Called, words, words, words),
    max_size=4,
)


@given(parts, st.integers(0, 99))
def test_what_was_shown_comes_back_as_it_was(shown: list[Part], reasoning: int) -> None:
    tree = SessionTree()
    told = sealed('{"a":"ü"}', shown, reasoning)
    tree.add(replace(make_turn(1), response_id="r", response=told))
    found = stored_response("r", "s", tree, 1)
    assert found.output == tuple(shown)
    assert (found.fields, found.reasoning_tokens) == ({"a": "ü"}, reasoning)


CALLS = (
    '<tool_call>{"name":"ls","arguments":{"p":1}}</tool_call>'
    '<tool_call>{"name":"cat","arguments":{}}</tool_call>'
)


def test_calls_have_the_ids_that_they_were_shown_with() -> None:
    tree = SessionTree()
    shown = (Called("x1", "ls", "{}"), Called("x2", "cat", "{}"))
    tree.add(answered(make_turn(1, None, "q", CALLS), "r", *shown))
    found = stored_response("r", "s", tree, 1)
    assert [(call.id, call.name) for call in found.said.tool_calls] == [("x1", "ls"), ("x2", "cat")]
    assert found.said.content == ""
    assert digest(found.said) == digest(Message("assistant", CALLS))


def test_calls_of_other_apis_have_the_ids_that_their_results_name() -> None:
    tree = SessionTree()
    tree.add(make_turn(1, None, "q", CALLS))
    results = (
        Message("tool", "a", tool_call_id="y1"),
        Message("tool", "b", tool_call_id="y2"),
        user("and?"),
    )
    tree.add(answered(make_turn(2, 1, Chat(results)), "r", Said("ok")))
    found = stored_response("r", "s", tree, 2)
    assert [call.id for call in found.asked[1].tool_calls] == ["y1", "y2"]


def test_a_completion_was_no_response() -> None:
    tree = SessionTree()
    tree.add(text_turn(1, None, "Once", " upon"))
    with pytest.raises(ResponseNotFound):
        stored_response("r", "s", tree, 1)


def written(fields: object = None, output: object = (), reasoning: object = 0) -> str:
    return json.dumps({"fields": fields or {}, "output": output, "reasoning_tokens": reasoning})


DEEP = json.loads("[" * 300 + "]" * 300)
DAMAGED = {
    "no JSON": "{",
    "a list": "[]",
    "no fields": '{"output":[]}',
    "a part without words": written(output=[["said"]]),
    "a number said": written(output=[["said", 5]]),
    "an object said": written({"instructions": ["a"]}, [["said", {"a": 1}]]),
    "half a character": written(output=[["said", "\ud800"]]),
    "another part": written(output=[["sung", "la"]]),
    "less than no reasoning": written(reasoning=-5),
    "reasoning without end": written(reasoning=2**60),
    "reasoning in quotes": written(reasoning="5"),
    "no number": written({"a": float("nan")}),
    "beyond all numbers": '{"fields":{"a":1e999},"output":[],"reasoning_tokens":0}',
    "echoed a list": written({"echoed": ["a"]}),
    "created by a word": written({"created": "now"}),
    "namespaces of numbers": written({"namespaces": {"a": 5}}),
    "too deep": written({"echoed": {"a": DEEP}}),
}


@pytest.mark.parametrize("told", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_response_is_one_that_is_not_there(told: str) -> None:
    """And one behind it is still found."""
    tree = SessionTree()
    tree.add(replace(make_turn(1), response_id="r", response=told))
    tree.add(answered(make_turn(2, 1), "r2", Said("ok")))
    with pytest.raises(ResponseNotFound, match="turn 1 is damaged"):
        stored_response("r", "s", tree, 1)
    assert stored_response("r2", "s", tree, 2).output == (Said("ok"),)


async def said(daemon: Daemon, response: str, *texts: str, session: str = "talk") -> str:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    request = TurnRequest(
        SessionRef(session), read_chat(messages), ending=Ending(8), response_id=response
    )
    events = [event async for event in (await daemon.lifecycle.open(request)).events]
    assert isinstance(events[-1], Finished)
    return events[-1].text


async def test_a_response_outlives_the_daemon(state_dir: Path) -> None:
    rig = rig_of("attention", state_dir)
    async with rig.daemon(kill=True) as daemon:
        reply = await said(daemon, "resp_1", "Hello?")
    async with rig.daemon() as daemon:
        found = await daemon.lifecycle.response("resp_1")
        assert (found.session, found.turn, found.said.content) == ("talk", 1, reply.strip())
        assert found.output == (Said(reply),)
        assert [message.content for message in found.asked] == ["Hello?"]
        await daemon.lifecycle.forget_response("resp_1")
        for lookup in (daemon.lifecycle.response, daemon.lifecycle.forget_response):
            with pytest.raises(ResponseNotFound):
                await lookup("resp_1")
        assert len(await daemon.lifecycle.turns("talk")) == 1


async def test_a_response_that_is_not_saved_yet_is_found(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        with unwritable():
            await said(daemon, "resp_1", "Hello?")
            assert (await daemon.lifecycle.response("resp_1")).turn == 1


async def test_a_fork_leaves_responses_where_they_were_given(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        reply = await said(daemon, "resp_1", "Hello?")
        await daemon.lifecycle.fork("talk", "copy", 1)
        assert (await daemon.lifecycle.response("resp_1")).session == "talk"
        await said(daemon, "resp_2", "Hello?", reply, "And?", session="copy")
        found = await daemon.lifecycle.response("resp_2")
        assert (found.session, found.turn) == ("copy", 2)
        await daemon.lifecycle.delete("talk")
        with pytest.raises(ResponseNotFound):
            await daemon.lifecycle.response("resp_1")


async def test_an_unknown_response_is_said_to_be_unknown(state_dir: Path) -> None:
    async with rig_of("attention", state_dir).daemon() as daemon:
        await said(daemon, "resp_1", "Hello?")
        with pytest.raises(ResponseNotFound, match="resp_2"):
            await daemon.lifecycle.response("resp_2")
