"""Whatever a model writes: cut up it is the same, nothing is lost, and what comes back is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.chat.reply.parser import FormatParser
from sessiond.sessions.calls.formats import FORMATS, WAYS
from sessiond.sessions.calls.harmony import HARMONY
from sessiond.sessions.calls.scanner import Scanner
from sessiond.sessions.calls.spelling import JsonCall, TaggedCall
from sessiond.sessions.calls.tags import ANALYSIS, TAGS
from sessiond.sessions.echo import reopened
from sessiond.sessions.parts import Part, Said, calls, joined, said
from sessiond.sessions.transcript import Message, digest
from tests.chat.reply.corpus import CASES, SCHEMAS, TOOLS, called, plain
from tests.chat.reply.test_reply_corpus import sent_back

each_form = pytest.mark.parametrize("form", FORMATS)
FRAGMENTS = (
    *(mark for way in WAYS for mark in (*way.marks, way.closer) if mark),
    *("<think>", "</think>", "<|channel>thought", "<channel|>", "[THINK]", "[/THINK]"),
    *("<|end|>", "<|start|>assistant", "<|message|>", "analysis", "final", "commentary"),
    *("read", "rm", "[ARGS]", "{", "}", "[", "]", '"', "\\", ",", ":", " ", "\n", "`", "<", "|>"),
    *("<parameter=path>", "</parameter>", "</function>", ">", "call:read", "<tool_call|>", "a"),
    '{"name": "read", "arguments": {"path": "x"}}',
    '{"name": "rm", "arguments": {}}',
    '{"path": "x"}',
    "[read(path='x')]",
    *(case.raw for case in CASES if case.form != "generic"),
)
soups = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
_BESIDE = ("Now.", "\n", " ", "<think>", "</tool_call>", "{", "}", "<|end|>", "rm", "<", '"', "[")
OPENED = {"generic": (None,), "harmony": (None, ANALYSIS), "mistral": (None, TAGS[5])}


def replies(form: str, inside: bool) -> st.SearchStrategy[str]:
    """What models of this family write, in any order and cut off anywhere.

    `inside`: reasoning has begun before. Reasoning that ends and never began is at the start only:
    elsewhere a reply cannot be told from one whose reasoning the template opened.
    """
    own = tuple(case for case in CASES if case.form == form)
    began = tuple(case.raw for case in own if case.ends and inside)
    soup = st.lists(st.sampled_from((*(c.raw for c in own if not c.ends), *_BESIDE)), max_size=7)
    text = st.builds("{}{}".format, st.sampled_from((*began, "")), soup.map("".join))
    return st.builds(lambda text, cut: text[: len(text) - cut], text, st.integers(0, 40))


def read(form: str, *pieces: str, **options: Any) -> tuple[Part, ...]:
    parser = FormatParser(FORMATS[form], TOOLS, **options)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return (*parts, *parser.close())


def cut(text: str, at: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(n % (len(text) + 1) for n in at)})
    return [text[a:b] for a, b in pairwise(ends)]


@given(soups, st.lists(st.integers(0, 10_000), max_size=8), st.sampled_from(list(FORMATS)))
def test_any_text_cut_anywhere_has_the_same_parts(text: str, at: list[int], form: str) -> None:
    whole = plain(read(form, text))
    assert plain(read(form, *cut(text, at))) == whole
    assert plain(read(form, *text)) == whole


@given(soups, st.lists(st.integers(0, 10_000), max_size=8))
def test_the_pieces_of_any_text_are_the_text(text: str, at: list[int]) -> None:
    scanner = Scanner(WAYS)
    pieces = [piece for part in cut(text, at) for piece in scanner.feed(part)]
    assert "".join(piece.text for piece in (*pieces, *scanner.close())) == text


@each_form
@given(st.data(), st.booleans())
def test_any_reply_comes_back_as_it_is_known(
    form: str, data: st.DataObject, looked_for: bool
) -> None:
    opened = data.draw(st.sampled_from(OPENED.get(form, (None, TAGS[0]))))
    text = data.draw(replies(form, inside=opened is not None))
    parts = read(form, text, calls=looked_for, opened=opened)
    kept = Message("assistant", reopened(text, opened.opens if opened else ""))
    assert sent_back(parts) == digest(kept)
    if opened is None and HARMONY not in FORMATS[form].ways:
        unsplit = read(form, text, calls=looked_for, split=False)
        assert sent_back(unsplit) == digest(Message("assistant", text))


@given(soups)
def test_without_calls_and_reasoning_all_is_said_as_it_is(text: str) -> None:
    for form in FORMATS:
        parts = joined(read(form, text, calls=False, split=False))
        assert parts == ((Said(text),) if text else ())


@each_form
@given(st.text("ab <>[]{}\n\"'`_|", max_size=40))
def test_words_are_said_as_they_are(form: str, text: str) -> None:
    assert joined(read(form, text)) == ((Said(text),) if text else ())


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
given_to_read = st.fixed_dictionaries(
    {},
    optional={
        "path": texts,
        "limit": st.integers(),
        "all": st.booleans() | st.none(),
        "options": st.dictionaries(texts, values, max_size=3),
    },
)


def spelled(form: str, arguments: list[dict[str, Any]], write: Callable[[Any], str]) -> str:
    spelling = FORMATS[form].spelling
    written = []
    for one in arguments:
        call = spelling.call
        if isinstance(call, JsonCall):
            inside = write(one)
        else:
            inside = "".join(_parameter(call, *field) for field in one.items())
        written.append(call.begin("read") + inside + call.after)
    return spelling.start + spelling.between.join(written) + spelling.end


def _parameter(call: TaggedCall, name: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return call.begin_parameter(name) + text + call.parameter_after


@each_form
@given(st.lists(given_to_read, min_size=1, max_size=3), st.booleans(), st.data())
def test_what_is_spelled_is_read(
    form: str, arguments: list[dict[str, Any]], ascii_only: bool, data: st.DataObject
) -> None:
    if not FORMATS[form].spelling.many:
        arguments = arguments[:1]
    raw = spelled(form, arguments, lambda one: json.dumps(one, ensure_ascii=ascii_only))
    at = data.draw(st.lists(st.integers(0, len(raw)), max_size=4))
    parts = read(form, *cut(raw, at))
    assert plain(parts) == plain(called("read", **one) for one in arguments)
    assert sent_back(parts) == digest(Message("assistant", raw))


@each_form
def test_a_call_goes_out_when_it_is_whole(form: str) -> None:
    """Not with the end of the reply, where another may follow."""
    spelling = FORMATS[form].spelling
    if not spelling.many or spelling.end:
        return
    raw = spelled(form, [{"path": "/a"}] * 2, json.dumps)
    parser, seen = FormatParser(FORMATS[form], TOOLS), []
    for at, character in enumerate(raw):
        seen += [at] * len(calls(parser.feed(character)))
    assert seen
    assert seen[0] <= len(raw) // 2 + 1


@each_form
def test_ids_are_what_templates_allow_and_differ(form: str) -> None:
    ids = {FORMATS[form].new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 9 and one.isalnum() for one in ids) or all(
        one.startswith("call_") and len(one) == 29 for one in ids
    )


def test_any_tool_is_known_where_none_is_given() -> None:
    parser = FormatParser(FORMATS["hermes"])
    parts = parser.feed('<tool_call>{"name": "x", "arguments": {}}</tool_call>')
    assert [call.name for call in calls(parts)] == ["x"]


def test_words_go_out_at_once() -> None:
    parser = FormatParser(FORMATS["generic"], TOOLS)
    assert said(parser.feed("Hello")) == "Hello"
    assert said(parser.feed(" there <b")) == " there <b"
    assert said(parser.feed("><")) == ">"
    assert said(parser.feed("x")) == "<x"


HARD = (
    "<tool_call>{",
    '<tool_call>{"a": "',
    "<tool_call>",
    "<function=a>",
    "<function=a><parameter=b>",
    "<function=a><parameter=b></parameter>",
    "[TOOL_CALLS]",
    "[TOOL_CALLS]a{",
    "<|tool_call>",
    "<|channel|>",
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "to=functions.a",
    "```tool_code\n",
    "<think>",
    "<think></think>",
    "{",
    '{"name": ',
    "[a(",
    " ",
    "\n<",
    '<tool_call>{"name": "read", "arguments": {}}</tool_call>',
)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("unit", HARD, ids=repr)
def test_a_long_reply_takes_no_long_time(unit: str) -> None:
    """Four characters at a time. Far below a minute is what matters: looking again took that."""
    text = unit * (100_000 // len(unit))
    began = process_time()
    read("generic", *(text[at : at + 4] for at in range(0, len(text), 4)))
    sent_back([Said(text)])
    assert process_time() - began < 5.0


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_held_call_is_read_once(name: str) -> None:
    """However long its arguments: ten times the text takes no hundred times the time."""
    content = json.dumps({"name": name, "arguments": {"content": "x\n" * 100_000}})
    raw = f"<tool_call>{content}</tool_call>"
    began = process_time()
    parts = read("hermes", *(raw[at : at + 4] for at in range(0, len(raw), 4)))
    assert len(calls(parts)) == 1
    assert process_time() - began < 5.0
