"""Traces are read strictly, and their agent does what they say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts import make_traces
from scripts.day import trace
from scripts.day.agent import PLACEHOLDER, Agent
from scripts.day.client import Reply
from scripts.day.trace import Restart, Trace, TraceError, Turn

HEADER = '{"kind": "trace", "about": "A test."}'


# --- the format


def line(**fields: Any) -> str:
    turn = {"kind": "turn", "id": "a", "session": "s", "max_tokens": 8, "bound": "new"}
    return json.dumps({**turn, "say": [{"role": "user", "words": 5}], **fields})


def parsed(*lines: str) -> Trace:
    return trace.parse("test", [HEADER, *lines])


BROKEN = [
    (['{"kind": "nap"}'], "line 2: Input tag 'nap'"),
    (["{"], "line 2: Invalid JSON"),
    ([line(id="")], "line 2: turn.id: String should have at least 1 character"),
    ([line(replies=["yes"])], "line 2: turn.replies: Extra inputs are not permitted"),
    ([line(bound="cheap")], "line 2: turn.bound: Input should be 'new', 'user', 'front' or"),
    ([line(say=[])], "it says nothing new"),
    ([line(say=[{"role": "user"}])], "give either words or reply_of"),
    ([line(back=1)], "back, edit, prune and compact change what after names"),
    ([line(calls=True)], "calls needs tools"),
    ([line(), line()], "line 3: there is an event 'a' already"),
    ([line(after="b")], "line 2: there is no event 'b' before it"),
    ([line(say=[{"role": "user", "reply_of": "b"}])], "line 2: there is no event 'b' before it"),
    ([line(beside=True)], "line 2: 'a' is beside no turn"),
    ([line(), line(id="b", after="a", beside=True)], "'a' has not been answered"),
    (['{"kind": "restart"}'], "test has no turns"),
    ([HEADER, line()], "line 2: a trace begins with one line of kind trace"),
    (['{"kind": "pause", "seconds": 0}', line()], "line 2: pause.seconds: Input should be greater"),
]


@pytest.mark.parametrize(("lines", "said"), BROKEN, ids=[said[:30] for _, said in BROKEN])
def test_a_broken_trace_says_where_and_why(lines: Sequence[str], said: str) -> None:
    with pytest.raises(TraceError) as broken:
        parsed(*lines)
    assert str(broken.value).startswith("test")
    assert said in str(broken.value)


def test_a_trace_without_its_header_is_refused() -> None:
    with pytest.raises(TraceError, match="begins with one line of kind trace"):
        trace.parse("test", [line()])


def test_traces_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    own = tmp_path / "mine.jsonl"
    own.write_text(f"{HEADER}\n\n{line()}\n")
    assert [one.name for one in trace.named(["growth", str(own)])] == ["growth", "mine"]
    assert {one.name for one in trace.named([])} == set(make_traces.TRACES)
    with pytest.raises(TraceError, match="neither a file nor one of: compaction, edit"):
        trace.named(["none"])


@pytest.mark.parametrize("name", make_traces.TRACES)
def test_the_traces_are_what_their_maker_writes(name: str) -> None:
    assert (trace.FOLDER / f"{name}.jsonl").read_text() == make_traces.text_of(name)


def test_every_trace_has_a_restart() -> None:
    for one in trace.named([]):
        assert any(isinstance(event, Restart) for event in one.events), one.name


# --- the agent


def heard(
    text: str, *, calls: Sequence[str] = (), finish: str = "stop", thought: str = ""
) -> Reply:
    made = tuple(
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in calls
    )
    return Reply(text, thought, made, finish, 1.0, 2.0, 10, 3, 10)


def talk(*lines: str) -> tuple[Agent, list[Turn]]:
    """Of all turns but the last, in whose place the test asks."""
    agent, turns = Agent("test", 1.0), parsed(*lines).turns
    for turn in turns[:-1]:
        agent.hear(agent.request(turn), heard(f"Reply to {turn.id}."))
    return agent, turns


def say(role: str = "user", **fields: Any) -> list[dict[str, Any]]:
    return [{"role": role, **({"words": 4} | fields)}]


def test_replies_are_sent_back_and_the_text_of_a_seed_is_the_same() -> None:
    agent, turns = talk(line(say=[*say("system", like="front"), *say()]), line(id="b", after="a"))
    messages = agent.request(turns[-1]).messages
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == "Reply to a."
    assert [len(m["content"].split()) for m in messages] == [4, 4, 3, 5]
    assert messages == talk(*map(Turn.model_dump_json, turns))[0].request(turns[-1]).messages
    other = Agent("other", 2.0).request(turns[0]).messages
    assert len(other[0]["content"].split()) == 8
    assert other[0]["content"][:8] != messages[0]["content"][:8]


def test_what_an_agent_changes() -> None:
    steps = [line(id="a"), line(id="b", after="a"), line(id="c", after="b")]
    before = talk(*steps, line(id="x", after="c"))[0].conversation("c")
    texts = [one.message["content"] for one in before]

    def sent(**fields: Any) -> list[str]:
        agent, turns = talk(*steps, line(id="x", after="c", **fields))
        return [message["content"] for message in agent.request(turns[-1]).messages]

    assert sent(back=1, say=[]) == texts[:-1]
    assert sent(back=2)[:-1] == texts[:-2]
    edited = sent(edit={"message": -4, "words": 7}, say=[])
    assert [a == b for a, b in zip(edited, texts, strict=True)] == [1, 1, 0, 1, 1, 1]
    compacted = sent(compact={"summary": "b", "keep": 1}, say=[])
    assert compacted == ["Summary: Reply to b.", "Reply to c."]
    assert sent(say=[{"role": "user", "reply_of": "a"}])[-1] == "Reply to a."
    with pytest.raises(TraceError, match="x: 9 messages back, and there are 6"):
        sent(back=9)


def test_outputs_answer_calls_and_are_pruned() -> None:
    steps = [line(tools=1, calls=True), line(id="b", after="a", tools=1, say=say("output"))]
    first, second = parsed(*steps, line(id="c", after="b", prune={"keep": 0}, tools=1)).turns[:2]
    agent = Agent("test", 1.0)
    asked = agent.request(first)
    assert asked.body["tool_choice"] == "required"
    agent.hear(asked, heard("", calls=["one", "two"], finish="tool_calls"))
    answered = agent.request(second).messages[-2:]
    assert [(m["role"], m["tool_call_id"]) for m in answered] == [("tool", "one"), ("tool", "two")]
    agent.hear(agent.request(second), heard("Done."))
    third = parsed(*steps, line(id="c", after="b", prune={"keep": 1}, tools=1)).turns[2]
    contents = [m["content"] for m in agent.request(third).messages]
    assert contents[2] == PLACEHOLDER != contents[3]


def test_where_no_tool_was_called_its_output_comes_from_the_user() -> None:
    agent, turns = talk(line(tools=1), line(id="b", after="a", tools=1, say=say("output")))
    assert agent.request(turns[-1]).messages[-1]["role"] == "user"


def test_an_agent_keeps_reasoning_only_where_it_says_so_and_no_calls_that_were_cut() -> None:
    reply = heard("Yes.", thought="Hm.", calls=["one"], finish="length")
    assert reply.kept(drops=True) == {"role": "assistant", "content": "Yes."}
    kept = heard("Yes.", thought="Hm.", calls=["one"]).kept(drops=False)
    assert kept["reasoning_content"] == "Hm."
    assert [call["id"] for call in kept["tool_calls"]] == ["one"]
