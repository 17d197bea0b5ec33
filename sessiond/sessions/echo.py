"""What is left of a reply when it comes back from a client.

Clients keep reasoning in the text, apart from it, or not at all; tool calls in the text as the
model wrote them, or parsed. All of these are one canonical form here, for matching only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sessiond.sessions.calls.call import InlineCall
from sessiond.sessions.calls.formats import take_calls

_REASONING = re.compile(
    r"\s*(?:"
    r"<(?P<tag>think|thinking|thought|reasoning|seed:think)>.*?(?:</(?P=tag)>|\Z)"
    r"|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>(?:<\|start\|>assistant)?|\Z)"
    r")\s*",
    re.DOTALL,
)
_OPENED_BY_TEMPLATE = re.compile(r"(?:(?!<think>).)*?</think>\s*", re.DOTALL)
_FINAL = re.compile(r"\s*<\|channel\|>final<\|message\|>")


@dataclass(frozen=True, slots=True)
class Visible:
    """`text` is what was said, without surrounding white space; the calls are in their order."""

    text: str
    calls: tuple[InlineCall, ...] = ()


def visible(text: str) -> Visible:
    """Reasoning at the beginning is left out; well-formed calls are taken out of the text."""
    rest, calls = take_calls(without_reasoning(text))
    return Visible(rest.strip(), calls)


def without_reasoning(text: str) -> str:
    """What follows the reasoning a reply begins with; all of it where there is none."""
    end = 0
    while found := _REASONING.match(text, end):
        end = found.end()
    if not end and "</think>" in text and (found := _OPENED_BY_TEMPLATE.match(text)):
        end = found.end()
    if found := _FINAL.match(text, end):
        end = found.end()
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
