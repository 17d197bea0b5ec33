"""Tool calls in a reply are known, however a model writes them; other text stays text."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from sessiond.sessions.calls.call import InlineCall
from sessiond.sessions.calls.ends import MOST_VALUES, Through
from sessiond.sessions.calls.formats import WAYS, take_calls
from sessiond.sessions.calls.scanner import DEAREST, MOST, Found, Mark, Scanner, Words
from sessiond.sessions.calls.way import Verdict, Way
from sessiond.sessions.echo import visible
from sessiond.sessions.transcript import digest, read_message

ARGUMENTS = {"path": "/a b", "limit": 3}
WRITTEN = {
    "json in tags": '<tool_call>{"arguments":{"limit":3,"path":"/a b"},"name":"read"}</tool_call>',
    "tags": "<tool_call>\n<function=read>\n<parameter=path>\n/a b\n</parameter>\n"
    "<parameter=limit>3</parameter>\n</function>\n</tool_call>",
    "tags without a frame": "<function=read><parameter=path>/a b</parameter>"
    "<parameter=limit>3</parameter></function>",
    "json in a function": '<function=read>{"path": "/a b", "limit": 3}</function>',
    "cut off after the call": '<tool_call>{"name":"read","arguments":{"path":"/a b","limit":3}}',
    "cut off in the closing mark": '<tool_call>{"name":"read","arguments":'
    '{"path":"/a b","limit":3}}\n</tool_ca',
    "json": '{"type": "function", "name": "read", "parameters": {"path": "/a b", "limit": 3}}',
    "json after a mark": '<|python_tag|>{"name":"read","arguments":{"path":"/a b","limit":3}}',
    "json as a string": '{"name": "read", "arguments": "{\\"path\\": \\"/a b\\", \\"limit\\": 3}"}',
    "a list": '[{"name": "read", "arguments": {"path": "/a b", "limit": 3}}]',
    "a marked list": '[TOOL_CALLS] [{"name": "read", "arguments": {"path": "/a b", "limit": 3}}]',
    "a marked name": '[TOOL_CALLS]read[CALL_ID]abcdefghi[ARGS]{"path": "/a b", "limit": 3}',
    "code": "```tool_code\nprint(read(path='/a b', limit=3))\n```",
    "a list of code": '[read(limit=3, path="/a b")]',
    "a channel": "<|channel|>commentary to=functions.read <|constrain|>json<|message|>"
    '{"path": "/a b", "limit": 3}<|call|>',
    "a channel named late": "<|start|>assistant to=functions.read<|channel|>commentary json"
    "<|message|>"
    '{"path": "/a b", "limit": 3}',
}


def parsed(arguments: object, name: str = "read", content: str | None = None) -> bytes:
    call = {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}
    return digest(read_message({"role": "assistant", "content": content, "tool_calls": [call]}))


def said(text: str) -> bytes:
    return digest(read_message({"role": "assistant", "content": text}))


@pytest.mark.parametrize("raw", WRITTEN.values(), ids=WRITTEN)
def test_a_call_is_the_same_written_and_parsed(raw: str) -> None:
    for thought in ("", "<think>Hm.</think>\n", "[THINK]Hm.[/THINK]"):
        assert said(thought + raw) == parsed(ARGUMENTS)
    assert said(raw) != parsed(ARGUMENTS | {"limit": 4})
    assert said(raw) != parsed(ARGUMENTS, name="write")
    assert said(raw) != parsed(ARGUMENTS, content="Reading.")
    assert said(raw) != said("")


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('<parameter=content>\n{"a": [1, 2]}\n</parameter>', {"content": '{"a": [1, 2]}'}),
        ('<parameter=content>\n{"a": [1, 2]}\n</parameter>', {"content": {"a": [1, 2]}}),
        ("<parameter=content>42</parameter>", {"content": "42"}),
        ("<parameter=content>true</parameter>", {"content": True}),
        ('<parameter=content>"42"</parameter>', {"content": '"42"'}),
        ("<parameter=content>\n a\n\nb \n</parameter>", {"content": " a\n\nb "}),
    ],
)
def test_values_without_a_type_are_what_the_schema_makes_of_them(
    raw: str, arguments: dict[str, Any]
) -> None:
    assert said(f"<tool_call><function=read>{raw}</function></tool_call>") == parsed(arguments)


def test_what_is_said_beside_calls_counts_and_their_order_does_not() -> None:
    """Calls in the text cannot be told from calls that were taken out of it, before or behind."""
    one, other = (f'<tool_call>{{"name": "{n}", "arguments": {{}}}}</tool_call>' for n in "ab")
    assert visible(f"Now.\n{one}\n{other}").text == "Now."
    assert [call.name for call in visible(one + other).calls] == ["a", "b"]
    assert said(one + other) == said(other + one) != said(one)
    harmony = "<|channel|>commentary<|message|>Now.<|end|><|start|>assistant" + (
        "<|channel|>commentary to=functions.read json<|message|>{}<|call|>"
    )
    assert said(harmony) == parsed({}, content="Now.")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "age": 36}',
        '{"name": "read"}',
        '{"name": "read", "arguments": "all of them"}',
        '{"name": "read", "arguments": {}, "why": "because"}',
        '{"name": "two words", "arguments": {}}',
        'It is {"name": "read", "arguments": {}}',
        '[{"name": "read", "arguments": {}}, 1]',
        "[1, 2, 3]",
        "[]",
        "[the docs](https://example.org)",
        "[read(path)]",
        "[read(path=open('x'))]",
        "[TOOL_CALLS] read the file",
        "<tool_call>read the file</tool_call>",
        "<tool_call>[1]</tool_call>",
        "Write <function name> and </function> around it.",
        "```tool_code\nimport os\n```",
        "```tool_code\nfor x in y: read()\n```",
        "```python\nread(path='/a')\n```",
        "Send it to=functions.read or so",
        "<|channel|>commentary to=functions.read<|message|>not json<|call|>",
    ],
)
def test_text_that_only_looks_like_a_call_stays_text(text: str) -> None:
    assert take_calls(text) == (text, ())


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    [
        "<function=a>" * 20_000,
        "<tool_call>" * 20_000,
        "<tool_call><function=a>" + "<parameter=b>" * 20_000 + "</tool_call>",
        "[TOOL_CALLS]" * 20_000,
        "{" * 100_000,
        "[" + "a(" * 20_000 + ")]",
        "[a(b=" + "-" * 50_000 + "1)]",
        "[a(b=" + "1+" * 50_000 + "1)]",
        "[" + "a." * 20_000 + "b()]",
        "to=functions.a" * 20_000,
        "```tool_code\n" * 20_000,
        "<function=a><parameter=x>1</parameter>" + " " * 300_000 + "</function>",
    ],
    ids=lambda text: text[:12],
)
def test_text_made_to_be_hard_is_read(text: str) -> None:
    take_calls(text)


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]a[CALL_ID]" + " " * 20_000 + "x",
        "[TOOL_CALLS]a" + " " * 50_000 + "x",
        "to=functions.f" + " " * 20_000 + "x",
        "<think></think>" * 50_000,
        "[f()" + ",f()" * 50_000 + "]",
    ],
)
def test_what_looks_like_a_call_for_long_takes_no_long_time(text: str) -> None:
    """Seconds of the processor, and far below a minute is what matters: backtracking took that."""
    began = process_time()
    visible(text)
    assert process_time() - began < 2.0


class Never:
    """Every mark is the whole of what may be a call, and is none."""

    def feed(self, text: str) -> Verdict | None:
        return Verdict(True, 0)

    def close(self) -> bool:
        return True


def test_in_one_reply_so_many_marks_are_looked_behind_and_no_more() -> None:
    """Result: what follows is words, and however the text is cut up, the same is."""
    tried: list[str] = []
    way = Way("none", lambda _: Never(), lambda text: tried.append(text), marks=("@",))
    text = "@a" * 5 * MOST
    for size in (len(text), 7):
        tried.clear()
        scanner = Scanner((way,))
        cuts = range(0, len(text), size)
        pieces = [piece for at in cuts for piece in scanner.feed(text[at : at + size])]
        pieces += scanner.close()
        assert len(tried) == MOST + 1
        assert "".join(piece.text for piece in pieces if isinstance(piece, Words)) == text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>' * 5 * MOST,
        "<|channel|>analysis<|message|>" * 5 * MOST,
        "<|channel|>final<|message|>x<|end|>" * 5 * MOST,
        "</think>" * 5 * MOST,
        "<think></think>" * 5 * MOST,
    ],
)
def test_calls_and_marks_of_one_reply_are_bounded(text: str) -> None:
    scanner = Scanner(WAYS)
    pieces = scanner.feed(text) + scanner.close()
    assert "".join(piece.text for piece in pieces) == text
    assert MOST / 3 < len([p for p in pieces if isinstance(p, (Found, Mark))]) <= MOST + 3


def test_what_is_dear_to_read_is_read_up_to_a_sum() -> None:
    read: list[int] = []

    def take(text: str) -> tuple[InlineCall, ...]:
        read.append(len(text))
        return (InlineCall("a", "{}"),)

    way = Way("dear", lambda _: Through("!"), take, marks=("@",), cost=len)
    scanner = Scanner((way,))
    scanner.feed(("@" + "x" * 998 + "!") * 500)
    assert sum(read) == DEAREST


@pytest.mark.parametrize("within", ["{}", '{"name": "a", "arguments": {}}'])
def test_a_series_of_far_too_many_values_is_no_call(within: str) -> None:
    text = "<|python_tag|>" + within * (MOST_VALUES + 1)
    assert take_calls(text) == (text, ())


@pytest.mark.parametrize("value", ["[" + "1," * DEAREST + "]", "{" + "b:1," * DEAREST + "}"])
def test_arguments_of_far_too_many_parts_are_no_call(value: str) -> None:
    text = "<start_function_call>call:a{b:" + value + "}<end_function_call>"
    assert take_calls(text) == (text, ())
