"""What is left of a reply when it comes back from a client.

Clients keep reasoning in the text, apart from it, or not at all; tool calls in the text as the
model wrote them, or parsed. All of these are one canonical form here, for matching only.
"""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.sessions.calls.call import InlineCall
from sessiond.sessions.calls.formats import WAYS, take_calls
from sessiond.sessions.calls.harmony import CHANNEL, HARMONY, START
from sessiond.sessions.calls.scanner import Found, Mark, Scanner, Thinking
from sessiond.sessions.calls.tags import TAGS

_OPENS = (START, CHANNEL, *(tag.opens for tag in TAGS))
_ROUNDS, _ROUNDS_OF_LONG, _LONG = 8, 2, 100_000
"""What a call is taken out of can look like another one. Of a long text fewer are looked for."""


@dataclass(frozen=True, slots=True)
class Visible:
    """`text` is what was said, without surrounding white space; the calls are in their order."""

    text: str
    calls: tuple[InlineCall, ...] = ()


def visible(text: str) -> Visible:
    """Reasoning at the beginning is left out; well-formed calls are taken out of the text."""
    text = text.strip()
    calls: tuple[InlineCall, ...] = ()
    for _ in range(_ROUNDS if len(text) <= _LONG else _ROUNDS_OF_LONG):
        rest, further = take_calls(text[_opened_by_template(text) :])
        calls, before, text = calls + further, text, rest.strip()
        if text == before:
            break
    return Visible(text, calls)


def reopened(reply: str, opened: str) -> str:
    """A reply to a prompt that ended with this mark of reasoning, as if it began with it."""
    return f"{opened}\n{reply}" if opened else reply


def without_reasoning(text: str) -> str:
    """What follows the reasoning a reply begins with; all of it where there is none."""
    end = at = _opened_by_template(text)
    scanner = Scanner((HARMONY,))
    for piece in scanner.feed(text[at:]) + scanner.close():
        reasoning = isinstance(piece, (Thinking, Mark))
        if not reasoning and piece.text.strip():
            break
        at += len(piece.text)
        if reasoning or end:
            end = at
    return text[end:]


def seen_until(reply: str, echo: str) -> int | None:
    """How many characters of `reply` a client has seen that sends back `echo` of it, with the
    reasoning or without; None where `echo` is not the beginning of it, or nothing.
    """
    said = without_reasoning(reply)
    for whole, seen in ((reply, echo.strip()), (said, without_reasoning(echo).strip())):
        start = len(whole) - len(whole.lstrip())
        if seen and whole.startswith(seen, start):
            return len(reply) - len(whole) + start + len(seen)
    return None


def _opened_by_template(text: str) -> int:
    """Where reasoning has ended that the reply did not open; 0 if there is none.

    A mark inside of a call is part of what is called with.
    """
    if text.startswith(_OPENS) or not any(tag.closes[0] in text for tag in TAGS):
        return 0
    outside = _without_calls(text)
    ends = ((outside.find(tag.closes[0]), tag) for tag in TAGS)
    at, tag = min(((at, i) for i, (at, _) in enumerate(ends) if at >= 0), default=(-1, 0))
    if at < 0 or outside.find(TAGS[tag].opens, 0, at) >= 0:
        return 0
    return at + len(TAGS[tag].closes[0])


def _without_calls(text: str) -> str:
    """As long as `text`."""
    scanner = Scanner(WAYS)
    pieces = scanner.feed(text) + scanner.close()
    blanks = (" " * len(p.text) if isinstance(p, Found) else p.text for p in pieces)
    return "".join(blanks)
