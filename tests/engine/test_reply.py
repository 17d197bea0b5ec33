"""Visible text does not depend on how the bytes were cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessiond.engine.reply import ReplyText

texts = st.text(st.sampled_from("ab cä€😀é\u0301"), max_size=30)
stops = st.lists(st.text(st.sampled_from("ab cä€😀"), min_size=1, max_size=4), max_size=4)


def pieces_of(raw: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    return [raw[start:stop] for start, stop in pairwise(ends)]


def shown(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], ReplyText]:
    """What was sent for each piece and at the end."""
    reply = ReplyText(stop)
    return [*(reply.feed(piece) for piece in pieces), reply.close()], reply


def first_to_be_complete(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The oracle: look at every beginning of the text, shortest first."""
    for end in range(len(text) + 1):
        complete = [one for one in stop if text[:end].endswith(one)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(texts, st.lists(st.integers(0, 60)), stops)
@example("abcd", [3], ["c", "bcd"])
@example("xab", [2], ["ab", "abc"])
def test_any_split_shows_the_same_text(text: str, cuts: list[int], stop: list[str]) -> None:
    sent, reply = shown(pieces_of(text.encode(), cuts), tuple(stop))
    visible, by = first_to_be_complete(text, stop)
    assert "".join(sent) == reply.text == visible
    assert reply.stopped_by == by


@given(texts, st.lists(st.integers(0, 60)), stops)
def test_a_split_character_is_never_shown_as_a_replacement(
    text: str, cuts: list[int], stop: list[str]
) -> None:
    sent, _ = shown(pieces_of(text.encode(), cuts), tuple(stop))
    assert "\ufffd" not in "".join(sent)
    assert all(text.startswith("".join(sent[:count])) for count in range(len(sent)))


@given(st.binary(max_size=30), st.lists(st.integers(0, 40)))
def test_invalid_bytes_are_replaced_however_they_are_split(raw: bytes, cuts: list[int]) -> None:
    sent, _ = shown(pieces_of(raw, cuts))
    assert "".join(sent) == raw.decode(errors="replace")


@given(texts, st.lists(st.integers(0, 60)))
def test_without_stop_strings_every_whole_character_is_shown_at_once(
    text: str, cuts: list[int]
) -> None:
    pieces = pieces_of(text.encode(), cuts)
    reply = ReplyText()
    for count, piece in enumerate(pieces, start=1):
        reply.feed(piece)
        assert reply.text == b"".join(pieces[:count]).decode(errors="ignore")


@pytest.mark.parametrize(
    ("pieces", "stop", "sent", "by"),
    [
        ([b"say ST", b"OP!"], ("STOP",), ["say ", "", ""], "STOP"),
        ([b"say ST", b"ART"], ("STOP",), ["say ", "START", ""], None),
        ([b"aab"], ("ab",), ["a", ""], "ab"),
        ([b"a", b"a", b"b"], ("aab", "ab"), ["", "", "", ""], "aab"),
        ([b"\xf0\x9f", b"\x98\x80"], (), ["", "😀", ""], None),
        ([b"\xf0\x9f"], (), ["", "\ufffd"], None),
        ([b"x\xff", b"y"], (), ["x\ufffd", "y", ""], None),
        ([b"end"], ("",), ["end", ""], None),
    ],
)
def test_what_is_shown_when(
    pieces: list[bytes], stop: tuple[str, ...], sent: list[str], by: str | None
) -> None:
    shown_now, reply = shown(pieces, stop)
    assert shown_now == sent
    assert reply.stopped_by == by


def test_nothing_is_shown_after_a_stop_string() -> None:
    reply = ReplyText(("STOP",))
    reply.feed(b"a STOP b")
    assert (reply.feed(b"more"), reply.close(), reply.text) == ("", "", "a ")
