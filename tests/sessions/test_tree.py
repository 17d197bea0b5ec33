"""A request finds the deepest turn it goes on from, and a path is exactly its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.engine.memory import Tokens
from sessiond.sessions import tree as tree_module
from sessiond.sessions.outline import TurnOutline, outline
from sessiond.sessions.transcript import (
    Chat,
    Content,
    Message,
    Text,
    digest,
    equal,
    tools_digest,
)
from sessiond.sessions.tree import Match, SessionTree, Turn
from tests.sessions.turns import assistant, make_turn, text_turn, user

DAY = 86400.0


def grown(*turns: Turn) -> SessionTree:
    tree = SessionTree()
    for turn in turns:
        tree.add(turn)
    return tree


def said(tree: SessionTree, number: int) -> tuple[Message, ...]:
    conversation = tree.conversation(number)
    assert isinstance(conversation, Chat)
    return conversation.messages


# Few words, so that lines meet often.
few = st.sampled_from(["a", "b", " a"])
new_messages = st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), few), max_size=3)
tools = st.sampled_from([(), ("{}",), ('{"n":1}', "{}"), ("{}", '{"n":1}')])


@st.composite
def trees(draw: st.DrawFn) -> SessionTree:
    tree = SessionTree()
    for number in range(1, draw(st.integers(1, 8)) + 1):
        parent = draw(st.none() | st.integers(1, number - 1)) if number > 1 else None
        tree.add(
            make_turn(
                number,
                parent,
                Chat(tuple(draw(new_messages)), draw(tools) if parent is None else ()),
                draw(few),
                kept=draw(st.integers(0, tree.length(parent))),
                prompt=draw(st.lists(st.integers(0, 9), max_size=4)),
                replied=draw(st.lists(st.integers(0, 9), max_size=4)),
                created=draw(st.sampled_from([1.0, 2.0, 3.0])),
            )
        )
    return tree


def begins_with(request: Chat, tree: SessionTree, number: int) -> bool:
    path = tree.conversation(number)
    assert isinstance(path, Chat)
    return (
        tools_digest(path.tools) == tools_digest(request.tools)
        and len(path.messages) <= len(request.messages)
        and all(map(equal, path.messages, request.messages))
    )


@given(trees(), new_messages, st.data())
def test_the_match_is_the_deepest_turn_whose_path_the_request_begins_with(
    tree: SessionTree, more: list[Message], data: st.DataObject
) -> None:
    base = data.draw(st.sampled_from(list(tree)))
    known = tree.conversation(base.number)
    assert isinstance(known, Chat)
    request = Chat((*known.messages, *more), data.draw(tools))
    fitting = [turn.number for turn in tree if begins_with(request, tree, turn.number)]
    match = tree.match(request)
    if not fitting:
        assert match == Match(None)
        return
    assert match.turn in fitting
    assert match.matched_messages == max(len(said(tree, number)) for number in fitting)
    assert len(said(tree, match.turn)) == match.matched_messages
    rest = match.rest(request)
    assert isinstance(rest, Chat)
    assert rest.messages == request.messages[match.matched_messages :]


def joined(tree: SessionTree, number: int | None) -> list[int]:
    if number is None:
        return []
    turn = tree[number]
    own = [*turn.prompt_tokens.tolist(), *turn.reply_tokens.tolist()]
    return joined(tree, turn.parent)[: turn.kept] + own


@given(trees(), st.data())
def test_path_tokens_are_what_each_turn_kept_and_added(
    tree: SessionTree, data: st.DataObject
) -> None:
    for turn in data.draw(st.permutations(list(tree))):
        tokens = tree.path_tokens(turn.number)
        assert tokens.tolist() == joined(tree, turn.number)
        assert tokens.dtype == np.int32
        assert len(tokens) == tree.length(turn.number)


def test_path_tokens_are_shared_and_cannot_be_changed() -> None:
    tree = grown(make_turn(1))
    tokens = tree.path_tokens(1)
    assert tree.path_tokens(1) is tokens
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 9


def test_a_long_path_is_put_together_from_each_turn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = grown(make_turn(1))
    for number in range(2, 301):
        tree.add(make_turn(number, number - 1, kept=tree.length(number - 1)))
    copied = 0
    concatenate = np.concatenate

    def counting(pieces: Sequence[Tokens]) -> Tokens:
        nonlocal copied
        made = concatenate(pieces)
        copied += len(made)
        return made

    monkeypatch.setattr(np, "concatenate", counting)
    assert len(tree.path_tokens(300)) == 900
    assert copied == 2 * 900


def test_a_request_of_two_thousand_messages_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = grown(make_turn(1, None, "0"))
    for number in range(2, 1001):
        tree.add(make_turn(number, number - 1, str(number)))
        tree.add(make_turn(number + 10_000, number - 1, "aside"))
    request = Chat((*said(tree, 1000), user("next")))
    digested = 0

    def counting(message: Message) -> bytes:
        nonlocal digested
        digested += 1
        return digest(message)

    monkeypatch.setattr(tree_module, "digest", counting)
    assert tree.match(request) == Match(1000, matched_messages=2000)
    assert digested == 2001


def test_among_equal_lines_the_most_recently_used_one_goes_on() -> None:
    tree = grown(
        make_turn(1),
        make_turn(2, 1, "q", "same", created=10),
        make_turn(3, 1, "q", "same", created=20),
    )
    request = Chat((*said(tree, 2), user("next")))
    assert tree.match(request).turn == 3
    tree.add(make_turn(4, 2, "other", created=30))
    assert tree.match(request).turn == 2


def test_a_reply_that_came_back_to_the_letter_comes_before_one_that_differs_in_white_space() -> (
    None
):
    tree = grown(
        make_turn(1, None, "q", "yes\n", created=1), make_turn(2, None, "q", "yes", created=2)
    )
    assert tree.match(Chat((user("q"), assistant("yes\n"), user("n")))).turn == 1
    assert tree.match(Chat((user("q"), assistant("yes"), user("n")))).turn == 2
    assert tree.match(Chat((user("q"), assistant(" yes "), user("n")))).turn == 2


@pytest.mark.parametrize(
    "changed",
    [
        (user("hello"), assistant("ok"), user("n")),
        (user("hi"), assistant("okay"), user("n")),
        (user("hi"), user("ok"), user("n")),
        (user("hi"), user("n")),
        (user("hi"),),
    ],
)
def test_a_changed_word_role_or_missing_reply_does_not_match(changed: tuple[Message, ...]) -> None:
    assert grown(make_turn(1)).match(Chat(changed)).turn is None


def test_tools_match_as_a_set() -> None:
    tree = grown(make_turn(1, None, Chat((user("hi"),), ('{"a":1,"b":2}', "{}"))))
    messages = (user("hi"), assistant("ok"), user("n"))
    assert tree.match(Chat(messages, ("{}", '{"b":2,"a":1}'))).turn == 1
    assert tree.match(Chat(messages, ("{}",))).turn is None
    assert tree.match(Chat(messages)).turn is None


def twin_of(tree: SessionTree, content: Content) -> int | None:
    twin = tree.twin(tree.match(content), content)
    return twin.number if twin else None


def test_an_identical_request_has_a_twin() -> None:
    tree = grown(make_turn(1), make_turn(2, 1, "q"), make_turn(3, 1, "other"))
    assert twin_of(tree, Chat((user("hi"),))) == 1
    assert twin_of(tree, Chat((user("hi"), assistant("ok"), user("q")))) == 2
    assert twin_of(tree, Chat((user("hi"), assistant("ok"), user("Q")))) is None
    assert twin_of(tree, Chat((user("hi"), user("q")))) is None
    assert twin_of(tree, Chat((user("hi"),), ("{}",))) is None


def test_the_latest_twin_is_taken_and_other_template_options_make_no_twin() -> None:
    thinking = Chat((user("q"),), template_options=(("enable_thinking", True),))
    tree = grown(
        make_turn(1, None, "q", "x"), make_turn(2, None, "q", "y"), make_turn(3, None, thinking)
    )
    assert twin_of(tree, Chat((user("q"),))) == 2
    assert twin_of(tree, thinking) == 3


def test_a_prompt_goes_on_from_the_longest_text_it_begins_with() -> None:
    tree = grown(
        text_turn(1, None, "Once", " upon"),
        text_turn(2, 1, " a", " time"),
        text_turn(3, 1, " a", " day"),
        make_turn(4),
    )
    prompt = Text("Once upon a day, and")
    match = tree.match(prompt)
    assert match == Match(3, matched_characters=len("Once upon a day"))
    assert match.rest(prompt) == Text(", and")
    assert tree.match(Text("Once upon")).turn == 1
    assert tree.match(Text("Once upo")).turn is None
    assert twin_of(tree, Text("Once upon a")) == 3
    assert twin_of(tree, Text("Once")) == 1
    assert tree.conversation(3) == Text("Once upon a day")


@given(
    st.lists(st.tuples(st.text("ab", max_size=3), st.text("ab", max_size=3)), min_size=1), st.data()
)
def test_a_prompt_that_extends_a_path_matches_at_least_it(
    parts: list[tuple[str, str]], data: st.DataObject
) -> None:
    tree = SessionTree()
    for number, (prompt, reply) in enumerate(parts, 1):
        parent = data.draw(st.none() | st.integers(1, number - 1)) if number > 1 else None
        tree.add(text_turn(number, parent, prompt, reply))
    texts = {turn.number: tree.conversation(turn.number) for turn in tree}
    prompt = data.draw(st.text("ab", max_size=9))
    match = tree.match(Text(prompt))
    fitting = [
        t.prompt for t in texts.values() if isinstance(t, Text) and prompt.startswith(t.prompt)
    ]
    if match.turn is None:
        assert not fitting
    else:
        assert texts[match.turn] == Text(prompt[: match.matched_characters])
        assert match.matched_characters == max(map(len, fitting))


def test_a_chat_never_goes_on_from_raw_text() -> None:
    tree = grown(text_turn(1, None, "hi", "ok"))
    assert tree.match(Chat((user("hi"), assistant("ok"), user("n")))).turn is None
    assert grown(make_turn(1)).match(Text("hiok and more")).turn is None


def test_the_main_line_has_most_tokens_among_those_of_the_last_day() -> None:
    tree = grown(
        make_turn(1, created=1),
        make_turn(2, 1, "long", kept=3, prompt=range(50), created=2),
        make_turn(3, 1, "short", kept=3, created=DAY),
        make_turn(4, 1, "shorter", kept=1, created=DAY + 1),
    )
    assert tree.leaves() == (2, 3, 4)
    assert tree.main_line(DAY) == 2
    assert tree.main_line(DAY + 3) == 3
    assert tree.main_line(9 * DAY) == 4
    assert tree.line_role(1, DAY) == "main"
    assert tree.line_role(2, DAY) == "main"
    assert tree.line_role(2, DAY + 3) == "side"
    assert tree.last_used == DAY + 1


def test_lines_that_replace_one_another_leave_a_main_line() -> None:
    """No daemon writes such turns, but somebody's file may have had them."""
    tree = SessionTree()
    for number, replaced in ((1, 1), (2, 3), (3, 2)):
        tree.add(replace(make_turn(number), replaces=replaced))
    now = tree[1].created
    assert tree.main_line(now) in tree.leaves()
    kept = [TurnOutline(t.number, t.parent, 3, 2, 0, "m", "f", t.created, t.replaces) for t in tree]
    assert outline(kept, now).end is not None


def test_an_empty_tree_has_no_line() -> None:
    tree = SessionTree()
    assert (tree.main_line(1.0), tree.leaves(), tree.last_used, tree.take_number()) == (
        None,
        (),
        0,
        1,
    )
    assert tree.match(Chat((user("hi"),))) == Match(None)
    assert tree.match(Text("hi")) == Match(None)


def test_a_path_starts_at_the_root_and_numbers_go_on() -> None:
    tree = grown(make_turn(1), make_turn(4, 1), make_turn(7, 4))
    assert [turn.number for turn in tree.path(7)] == [1, 4, 7]
    assert tree.take_number() == 8
    assert len(tree) == 3


@pytest.mark.parametrize(
    "bad", [make_turn(1), make_turn(2, 9), make_turn(2, 1, kept=4), make_turn(2, None, kept=1)]
)
def test_a_turn_that_does_not_fit_is_refused_and_changes_nothing(bad: Turn) -> None:
    tree = grown(make_turn(1))
    with pytest.raises(ValueError, match="turn"):
        tree.add(bad)
    assert [turn.number for turn in tree] == [1]
    assert tree.leaves() == (1,)
