"""The sentence of a refusal: short, a way out in it, and nothing a client or a person mistakes."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.sessions.cause import Change
from sessiond.sessions.diagnosis import diagnose
from sessiond.sessions.difference import Difference, first_difference, spared
from sessiond.sessions.explanation import Explanation
from sessiond.sessions.policy import Extent
from sessiond.sessions.rewrite import Rewrite
from sessiond.sessions.transcript import Chat, Message
from sessiond.sessions.wording import SENTENCE, explain

OVERFLOW = re.compile(r"context|token|length|limit|exceed|maximum|too long|window|overflow", re.I)
EXTENT = Extent(session=41230, prompt=41200, reusable=97, front=0, told=41230)
names = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1)
hard_names = (
    names.filter(lambda name: len(name) <= 200)
    | st.integers(1, 200).map(lambda n: "'" * n)
    | st.integers(1, 200).map(lambda n: '"' * n)
    | st.integers(1, 200).map(lambda n: "ä b" * (n // 3 + 1))
    | st.integers(190, 200).map(lambda n: "n" * n)
)
CAUSES = ["tools_changed", "system_changed", "history_edited", "history_summarised"]
CAUSES += ["front_trimmed", "reordered"]
SECRET = "hunter2 swordfish"


def difference(message: int = 0, field: str = "content") -> Difference:
    return Difference(message, "user", field, 3, f"old {SECRET}", f"new {SECRET}")


@st.composite
def rewrites(draw: st.DrawFn) -> Rewrite:
    in_front, at = draw(st.booleans()), difference(draw(st.integers(0, 9999)))
    if draw(st.booleans()):
        cause = draw(st.sampled_from(CAUSES))
        return Rewrite(1, at, cause, None, in_front)
    kind = draw(st.sampled_from(["clock", "date", "identifier", "whitespace"]))
    values = st.text(st.characters(codec="utf-8"), max_size=300)
    change = Change("whitespace") if kind == "whitespace" else Change(kind, draw(values), "ab")
    return Rewrite(1, at, kind, change, in_front)


def told(name: str, rewrite: Rewrite) -> Explanation:
    return explain(name, rewrite, EXTENT, "refused", prefill_ms=88000.0, created=1.0)


@given(hard_names, rewrites())
def test_the_sentence_is_short_and_the_way_out_is_in_it(name: str, rewrite: Rewrite) -> None:
    message = told(name, rewrite).message
    assert len(message) <= SENTENCE == 250
    assert message.startswith('Not sent: "')
    assert " only accepts additions, and " in message
    assert "Start a new chat, or: sessiond set " in message
    assert message.endswith(" --policy fork")
    command = message.rpartition("sessiond set ")[2].removesuffix(" --policy fork")
    assert command in (shlex.quote(name), "NAME")
    assert "\n" not in message.replace(name, "")


@given(rewrites())
def test_no_client_takes_it_for_an_overflow_and_nothing_of_the_text_is_in_it(
    rewrite: Rewrite,
) -> None:
    explained = told("billing", rewrite)
    change = rewrite.change
    for said in (explained.message, explained.sentence):
        assert not OVERFLOW.search(said)
        assert "hunter2" not in said
        quoted = re.search(r"\((?:clock|date|id)(.*)\)", said)
        assert bool(quoted) == (change is not None and change.kind != "whitespace")
    assert "hunter2" in explained.before


def test_an_id_that_says_overflow_is_not_quoted() -> None:
    change = Change("identifier", "max_tokens_4096", "max_tokens_8192")
    rewrite = Rewrite(1, difference(), "identifier", change, True)
    assert told("x", rewrite).sentence == "The system prompt changed (id)."


def test_a_short_name_is_in_the_command_as_a_shell_takes_it() -> None:
    rewrite = Rewrite(1, difference(), "clock", Change("clock", "10:02", "10:03"), True)
    assert told("billing", rewrite).message == (
        'Not sent: "billing" only accepts additions, and the system prompt changed '
        "(clock 10:02 → 10:03). Start a new chat, or: sessiond set billing --policy fork"
    )
    assert told("my chat", rewrite).message.endswith("sessiond set 'my chat' --policy fork")
    assert told("n" * 200, rewrite).message.endswith("sessiond set NAME --policy fork")


def test_the_ways_on_name_the_session_as_shells_and_addresses_take_it() -> None:
    rewrite = Rewrite(1, difference(), "clock", Change("clock", "10:02", "10:03"), True)
    ways = "\n".join(told("it's {me}", rewrite).ways)
    assert "sessiond fork " + shlex.quote("it's {me}") + " NEW" in ways
    assert "/v1/sessions/it%27s%20%7Bme%7D/compact" in ways
    assert "--pinned-front" in ways
    history = Rewrite(1, difference(4), "history_edited", None, False)
    assert "--pinned-front" not in "\n".join(told("x", history).ways)


def user(text: str) -> Message:
    return Message("user", text)


def reply(text: str) -> Message:
    return Message("assistant", text)


KNOWN = (
    Message("system", "s"),
    *(make(f"{make.__name__} {n}") for n in range(5) for make in (user, reply)),
)


@pytest.mark.parametrize(
    ("request_", "cause", "index"),
    [
        ((KNOWN[0], *KNOWN[3:]), "front_trimmed", 1),
        ((KNOWN[0], user("sum"), *KNOWN[5:]), "history_summarised", 1),
        ((*KNOWN[:3], user("sum"), *KNOWN[7:]), "history_summarised", 3),
        ((*KNOWN[:3], *KNOWN[5:]), "history_edited", 3),
        ((*KNOWN[:3], *KNOWN[4:]), "history_edited", 3),
        ((*KNOWN[:3], user("x"), *KNOWN[3:]), "history_edited", 3),
        ((*KNOWN[:3], user("x"), *KNOWN[4:]), "history_edited", 3),
        ((*KNOWN[:3], *KNOWN[5:7], *KNOWN[3:5], *KNOWN[7:]), "reordered", 3),
        ((*KNOWN[:3], *KNOWN[5:7], *KNOWN[3:5]), "reordered", 3),
    ],
)
def test_what_became_of_a_history(request_: tuple[Message, ...], cause: str, index: int) -> None:
    known, request = Chat(KNOWN), Chat((*request_, user("next")))
    found = first_difference(known, request)
    assert found is not None
    assert found.message == index
    assert diagnose(known, request, found, in_front=False) == (cause, None)


def test_what_a_pruning_spares_is_where_the_next_one_begins() -> None:
    """Result: the first message as it was behind those that changed, of their role; an appended
    one, or one of another role, is none.
    """
    cleared = user("[cleared]")
    for count in range(len(KNOWN)):
        pruned = tuple(cleared if m.role == "user" else m for m in KNOWN[:count])
        request = (*pruned, *KNOWN[count:], user("next"))
        left = [at for at in range(count, len(KNOWN)) if KNOWN[at].role == "user"]
        changed = any(m.role == "user" for m in KNOWN[:count])
        assert spared(KNOWN, request) == (left[0] if changed and left else None)
    assert spared(KNOWN, KNOWN) is None


def test_words_that_come_again_and_again_do_not_hide_a_summary() -> None:
    """The user only says "continue"; the summary takes the place of more than one exchange."""
    said = [one for n in range(6) for one in (user("continue"), reply(f"part {n}"))]
    known = Chat((KNOWN[0], *said))
    summed = Chat((KNOWN[0], user("sum"), *said[8:], user("continue")))
    found = first_difference(known, summed)
    assert found is not None
    assert diagnose(known, summed, found, in_front=False)[0] == "history_summarised"
    edited = Chat((KNOWN[0], said[0], reply("other"), *said[2:], user("continue")))
    found = first_difference(known, edited)
    assert found is not None
    assert diagnose(known, edited, found, in_front=False)[0] == "history_edited"


def test_a_reply_is_compared_as_the_client_sees_it() -> None:
    raw = '<think>hm</think>Look.\n<tool_call>\n{"name": "ls", "arguments": {"p": 1}}\n</tool_call>'
    known = Chat((user("a"), reply(raw), user("b")))
    edited = Chat((user("a"), reply("Look!"), user("b")))
    found = first_difference(known, edited)
    assert found is not None
    assert (found.param, found.char, found.before) == ("messages[1].content", 4, "Look.")


def test_of_the_tools_only_those_are_shown_that_are_not_in_both() -> None:
    old, same, new = '{"a":1,"b":"x"}', '{"c":3}', '{"b":"y","a":1}'
    found = first_difference(Chat((user("a"),), (old, same)), Chat((user("a"),), (same, new)))
    assert found is not None
    assert (found.param, found.before, found.after) == ("tools", old, '{"a":1,"b":"y"}')
    assert found.char == old.index("x")
