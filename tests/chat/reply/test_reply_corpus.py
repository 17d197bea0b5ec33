"""Replies of every family, whole, cut up, and cut off, and what clients send back of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sessiond.chat.reply.parser import FormatParser
from sessiond.sessions.calls.formats import FORMATS, format_of
from sessiond.sessions.calls.tags import opened_by
from sessiond.sessions.echo import reopened
from sessiond.sessions.parts import Part, calls, said, thought
from sessiond.sessions.transcript import Message, ToolCall, canonical_arguments, digest
from tests.chat.reply.corpus import CASES, TOOLS, Case, plain

TEMPLATES = Path(__file__).parents[2] / "templates"
OF_ONE_FAMILY = [case for case in CASES if case.form != "generic"]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.form}: {case.name}")


def read(
    case: Case, pieces: Iterable[str], *, looked_for: bool = True, split: bool = True
) -> tuple[Part, ...]:
    form, opened = FORMATS[case.form], opened_by(case.ends)
    parser = FormatParser(form, TOOLS, calls=looked_for, opened=opened, split=split)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return (*parts, *parser.close())


def sent_back(parts: Iterable[Part]) -> bytes:
    parts = tuple(parts)
    written = tuple(
        ToolCall(call.id, call.name, canonical_arguments(call.arguments)) for call in calls(parts)
    )
    return digest(Message("assistant", said(parts), tool_calls=written))


def kept(case: Case, raw: str) -> bytes:
    tag = opened_by(case.ends)
    return digest(Message("assistant", reopened(raw, tag.opens if tag else "")))


@each_case
def test_a_reply_has_the_parts_it_should_have(case: Case) -> None:
    assert plain(read(case, [case.raw])) == plain(case.parts)


@each_case
def test_character_by_character_it_is_the_same(case: Case) -> None:
    assert plain(read(case, case.raw)) == plain(case.parts)


@pytest.mark.parametrize("case", OF_ONE_FAMILY, ids=lambda case: f"{case.form}: {case.name}")
def test_every_cut_of_the_stream_gives_the_same(case: Case) -> None:
    for at in range(len(case.raw)):
        assert plain(read(case, [case.raw[:at], case.raw[at:]])) == plain(case.parts)


@each_case
@pytest.mark.parametrize("looked_for", [True, False])
def test_what_comes_back_is_known_wherever_the_reply_ended(case: Case, looked_for: bool) -> None:
    for end in range(0, len(case.raw) + 1, 1 if case in OF_ONE_FAMILY else 7):
        raw = case.raw[:end]
        parts = read(case, [raw], looked_for=looked_for)
        assert sent_back(parts) == kept(case, raw), raw
        assert looked_for or not calls(parts)


@pytest.mark.parametrize("case", OF_ONE_FAMILY, ids=lambda case: f"{case.form}: {case.name}")
def test_reasoning_that_is_not_split_off_comes_back_as_well(case: Case) -> None:
    parts = read(case, [case.raw], split=False)
    assert not thought(parts)
    if "</think>" in case.raw or not case.ends:
        assert sent_back(parts) == kept(case, case.raw)


@each_case
def test_the_template_tells_the_family(case: Case) -> None:
    if case.template is not None:
        assert format_of((TEMPLATES / case.template).read_text()).name == case.form
