"""The events of a stream: their order, and the same reply however it is cut."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.failure import Failure
from sessiond.api.messages.events import SIGNATURE
from sessiond.api.messages.reply import MessagesReply, Wish
from sessiond.engine.events import Progress
from sessiond.sessions.parts import Called, Part, Said, Thought, joined
from sessiond.sessions.turn import Finished, Spoken
from tests.api.scripted import REPORT

Event = dict[str, Any]
CALL = Called("c1", "ls", '{"path": "/", "n": [1, 2]}')
PARTS: tuple[Part, ...] = (Thought("Hm, "), Thought("well."), Said("I "), Said("look."), CALL)


def events(stream: bytes) -> list[Event]:
    """The events' data; each has a line with its type before it."""
    told = []
    for one in stream.decode().split("\n\n")[:-1]:
        name, data = one.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
    return told


def reply(**wish: Any) -> MessagesReply:
    return MessagesReply(lambda: "model", Wish(**wish))


def finished(parts: tuple[Part, ...], **report: Any) -> Finished:
    return Finished("raw", replace(REPORT, **report), joined(parts), 2)


def whole(parts: tuple[Part, ...], **wish: Any) -> list[dict[str, Any]]:
    """The blocks of an answer in one piece, as they are on the wire."""
    blocks: list[dict[str, Any]] = json.loads(
        orjson.dumps(reply(**wish).whole(finished(parts), None)["content"])
    )
    return blocks


def streamed(parts: tuple[Part, ...], **wish: Any) -> list[Event]:
    told = reply(**wish)
    body = b"".join(told.spoken(Spoken("", (part,))) for part in parts)
    return events(body + told.last(finished(parts)))


def accumulated(stream: list[Event]) -> list[dict[str, Any]]:
    """The blocks as a client puts them together; raises where the order is not Anthropic's."""
    blocks: list[dict[str, Any]] = []
    opened: int | None = None
    for event in stream[1:-2]:
        if event["type"] == "content_block_start":
            assert opened is None
            assert event["index"] == len(blocks)
            opened = event["index"]
            blocks.append(dict(event["content_block"]))
            continue
        assert event["index"] == opened
        if event["type"] == "content_block_stop":
            opened = None
            continue
        _add(blocks[-1], event["delta"])
    assert opened is None
    return blocks


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    kind = delta.pop("type")
    ((name, value),) = delta.items()
    assert kind == ("input_json_delta" if name == "partial_json" else f"{name}_delta")
    if name == "partial_json":
        block["input"] = json.loads(value)
    else:
        block[name] += value


def test_the_order_of_events() -> None:
    told = streamed(PARTS)
    assert [(e["type"], e.get("index"), e.get("delta", {}).get("type")) for e in told] == [
        ("message_start", None, None),
        ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    starts = [e["content_block"] for e in told if e["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_c1", "name": "ls", "input": {}},
    ]
    assert told[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_the_whole_reply_and_the_stream_are_the_same() -> None:
    assert accumulated(streamed(PARTS)) == whole(PARTS)
    assert whole(PARTS) == [
        {"type": "thinking", "thinking": "Hm, well.", "signature": SIGNATURE},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_c1", "name": "ls", "input": {"path": "/", "n": [1, 2]}},
    ]


texts = st.text(st.sampled_from('a \n"\\é🙂\x00'), max_size=4)
kinds = st.builds(Said, texts) | st.builds(Thought, texts) | st.just(CALL)


@given(st.lists(kinds, max_size=8).map(tuple), st.booleans())
def test_every_cut_gives_the_same_reply(parts: tuple[Part, ...], thoughts: bool) -> None:
    """Whole, as it comes, and letter by letter: the same blocks, and none of white space alone."""
    at_once = whole(parts, thoughts=thoughts)
    letters = tuple(
        piece
        for part in parts
        for piece in ([part] if isinstance(part, Called) else map(type(part), part.text))
    )
    assert accumulated(streamed(parts, thoughts=thoughts)) == at_once
    assert accumulated(streamed(letters, thoughts=thoughts)) == at_once
    shown = [block for block in at_once if block["type"] == "text"]
    assert all(block["text"].strip() for block in shown)


@given(st.lists(kinds | st.none(), max_size=8))
def test_signs_of_life_add_nothing(told: list[Part | None]) -> None:
    """None is a silence. Result: the blocks are those of the reply, beside empty ones of text."""
    own = reply()
    parts = tuple(part for part in told if part is not None)
    body = b"".join(
        own.alive() if part is None else own.spoken(Spoken("", (part,))) for part in told
    )
    blocks = accumulated(events(body + own.last(finished(parts))))
    assert _words(blocks) == _words(whole(parts))


def _words(blocks: list[dict[str, Any]]) -> dict[str, str]:
    """All of a kind in a row: what an empty block stands between is cut there, and white space
    that would begin a block may be told in one that was open."""
    kinds = ("text", "thinking", "name")
    joined = {kind: "".join(str(b.get(kind, "")) for b in blocks) for kind in kinds}
    return {kind: "".join(words.split()) for kind, words in joined.items()}


def test_the_first_sign_of_life_opens_a_block_that_text_goes_on_with() -> None:
    own = reply()
    first, second = events(own.alive()), events(own.alive())
    assert [e["type"] for e in first] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    assert [e["delta"] for e in second] == [{"type": "text_delta", "text": ""}]
    assert [e["type"] for e in events(own.spoken(Spoken("", (Said("Hi"),))))] == [
        "content_block_delta"
    ]


def test_an_empty_block_is_closed_where_a_thought_comes_first() -> None:
    own = reply()
    body = own.alive() + own.spoken(Spoken("", (Thought("Hm"),)))
    body += own.alive() + own.last(finished((Thought("Hm"),)))
    assert accumulated(events(body)) == [
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "Hm", "signature": SIGNATURE},
    ]


def test_the_opening_says_what_is_known() -> None:
    """1. After progress. 2. Before it. 3. The end says it again, in any case."""
    known, unknown = reply(lifetime="5m"), reply()
    (start,) = events(known.progress(Progress(total=11, cached=4, processed=8, elapsed_ms=1.0)))
    assert known.progress(Progress(total=11, cached=4, processed=11, elapsed_ms=2.0)) == b""
    assert start["message"]["usage"] == {
        "input_tokens": 0,
        "cache_creation_input_tokens": 7,
        "cache_read_input_tokens": 4,
        "cache_creation": {"ephemeral_5m_input_tokens": 7, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 0,
    }
    (early,) = events(unknown.spoken(Spoken("", ())))
    assert early["message"]["usage"]["input_tokens"] == 0
    assert early["message"]["content"] == []
    assert early["message"]["stop_reason"] is None
    end = events(unknown.last(finished(())))[-2]
    assert (end["usage"]["input_tokens"], end["usage"]["cache_read_input_tokens"]) == (7, 4)


@pytest.mark.parametrize(
    "arguments", ['{"n": 123456789012345678901234567890}', "[" * 300 + "]" * 300]
)
def test_arguments_of_any_size_arrive_as_they_are(arguments: str) -> None:
    parts = (Called("c1", "ls", f'{{"a": {arguments}}}'),)
    assert whole(parts)[0]["input"] == {"a": json.loads(arguments)}
    assert accumulated(streamed(parts)) == whole(parts)


def test_thoughts_that_are_not_wanted_are_only_signed() -> None:
    told = streamed(PARTS, thoughts=False)
    deltas = [e["delta"]["type"] for e in told if e.get("index") == 0 and "delta" in e]
    assert deltas == ["signature_delta"]
    assert accumulated(told)[0] == {"type": "thinking", "thinking": "", "signature": SIGNATURE}


def test_what_has_ended_shows_no_life() -> None:
    """A client that reads slowly may still be busy with the end."""
    done, failed = reply(), reply()
    assert done.last(finished(()))
    assert failed.failed(Failure(500, "It failed.", "internal_error"))
    assert (done.alive(), failed.alive()) == (b"", b"")


def test_an_error_is_an_event_of_its_own() -> None:
    (told,) = events(reply().failed(Failure(503, "The pool is full.", "pool_full")))
    assert told["type"] == "error"
    assert told["error"]["type"] == "overloaded_error"
