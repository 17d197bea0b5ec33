"""What a list calls a session by."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.sessions.title import LONGEST, asks_for_title, first_words, title_in
from sessiond.sessions.transcript import Chat, Message, Text
from tests.sessions.kinds import chat, rig_of

ASKED = "You are a title generator. Generate a brief title."
TOOL = '{"type":"function","function":{"name":"ls"}}'


@given(st.text(min_size=1, max_size=300))
def test_first_words_are_one_short_line(text: str) -> None:
    made = first_words(Chat((Message("system", "s"), Message("user", text * 9))))
    assert len(made) <= LONGEST
    assert made.isprintable()


def test_first_words_end_with_a_whole_word() -> None:
    assert first_words(Chat((Message("user", "fix  the\nbuild\x07"),))) == "fix the build"
    assert first_words(Text("word " * 20)) == " ".join(["word"] * 11) + "…"
    assert first_words(Chat((Message("system", "s"),))) == ""


def test_what_agents_put_before_the_words_is_left_out() -> None:
    reminder = "<system-reminder>\nToday is <b>Monday</b>.\n</system-reminder>\n"
    context = "<environment_context><cwd>/x</cwd></environment_context>"
    assert first_words(Chat((Message("user", reminder + context + "Fix it"),))) == "Fix it"
    apart = (Message("user", context), Message("user", "Fix it, please"))
    assert first_words(Chat(apart)) == "Fix it, please"
    assert first_words(Chat((Message("user", "<b>bold</b>"),))) == "<b>bold</b>"
    assert first_words(Chat((Message("user", "<a> and </b>"),))) == "<a> and </b>"


@pytest.mark.parametrize(
    ("content", "asks"),
    [
        (Chat((Message("system", ASKED), Message("user", "Hi"))), True),
        (Chat((Message("user", "### Task:\nGenerate a concise title"),)), True),
        (Chat((Message("system", ASKED), Message("user", "Hi")), (TOOL,)), False),
        (Chat((Message("system", "Be terse."), Message("user", "A title, please"))), False),
        (Text("title"), False),
    ],
)
def test_a_request_for_a_title_is_known(content: Chat | Text, asks: bool) -> None:
    assert asks_for_title(content) is asks


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("Fix the build", "Fix the build"),
        ('<think>Hm.</think>\n"Fix the build"\n', "Fix the build"),
        ("**Title: Fix the build**", "Fix the build"),
        ('{"title": "Fix the build"}', "Fix the build"),
        ('```json\n{"title": "Fix the build"}\n```', "Fix the build"),
        ("Fix\nthe build", "Fix"),
        ("word " * 60, ""),
        ("", ""),
    ],
)
def test_the_title_is_taken_out_of_the_reply(reply: str, title: str) -> None:
    assert title_in(reply) == title


@given(st.text(max_size=500))
def test_any_reply_gives_one_short_line_or_none(reply: str) -> None:
    made = title_in(reply)
    assert len(made) <= LONGEST
    assert made.isprintable()


@pytest.mark.parametrize("first", ["talk", "title"])
async def test_the_agents_own_title_stays(state_dir: Path, first: str) -> None:
    """Asked for before the talk begins, or after; also after a restart."""
    asked = [{"role": "system", "content": ASKED}, {"role": "user", "content": "Whales?"}]
    rig = rig_of(
        "attention", state_dir, replies=["Whales"] if first == "title" else ["No", "Whales"]
    )
    async with rig.daemon() as daemon:
        for one in (asked, chat("Whales?"))[:: 1 if first == "title" else -1]:
            await daemon.say("talk", one, named=False)
        assert (await daemon.lifecycle.summary("talk")).title == "Whales"
    async with rig.daemon() as daemon:
        assert (await daemon.lifecycle.summary("talk")).title == "Whales"
