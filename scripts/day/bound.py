"""How few prompt tokens a request could cost a server, computed from the texts alone.

The front of a request is *known* if an earlier request to the same server, or such a request with
its reply as the agent keeps it, begins with the same messages under the same tools. Tokens are
counted in the request as the model's template renders it. With m messages, k of them known:

- k = 0: all tokens.
- k = m, an earlier conversation went on from exactly here: 1, since state has no logits.
- else: the tokens from where the text of message k begins to the end, the generation prompt too;
  and the tokens that the template puts between a reply and the text of such a message; and 1, for
  the last token of a reply that was cut is not in the state.

A stated bound takes less for known than that: `new` all k; `user` the messages before the last user
message among the first k + 1; `front` the system messages; `whole` nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.daemon import Json
from scripts.day.agent import Request, front_of, key_of
from scripts.day.trace import Bound
from sessiond.engine.memory import Tokens, common_prefix

OTHER = "\u00a7 something else altogether"
"""Begins as no word of a trace does, so that two renderings part where a message's text begins."""
Count = Callable[[Sequence[Json], Sequence[Json]], Tokens]
"""All tokens of a request with these messages and tools, the generation prompt at its end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`lower`: the lower bound of a request. `stated`: the bound that its trace states."""

    lower: int
    stated: int


class Bounds:
    """Of the requests of one server, in their order."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._seen: list[list[str]] = []
        self._between: dict[str, int] = {}

    def of(self, request: Request) -> Limits:
        known = self.known(request)
        return Limits(self._tokens(request, known), self._stated(request, known))

    def known(self, request: Request) -> int:
        """How many of its messages; 0 too where only the tools are the same."""
        wanted = key_of(request.messages, request.tools)
        return max((_equal(wanted, seen) - 1 for seen in self._seen), default=0)

    def learn(self, request: Request, kept: Json) -> None:
        """From now on the server has seen the request, and its reply as the agent keeps it."""
        self._seen.append(key_of([*request.messages, kept], request.tools))

    def _stated(self, request: Request, known: int) -> int:
        return self._tokens(request, allowed(request.turn.bound, request.messages, known))

    def _tokens(self, request: Request, known: int) -> int:
        messages, tools = request.messages, request.tools
        if known >= len(messages):
            return 1
        whole = self._count(messages, tools)
        if not known:
            return len(whole)
        other = [*messages[:known], {**messages[known], "content": OTHER}, *messages[known + 1 :]]
        begins = common_prefix(whole, self._count(other, tools))
        return len(whole) - begins + self._around(messages[known]["role"]) + 1

    def _around(self, role: str) -> int:
        """Tokens between the text of a reply and the text of the message behind it."""
        if role not in self._between:
            self._between[role] = between(self._count, "tool" if role == "tool" else "user")
        return self._between[role]


def allowed(bound: Bound, messages: Sequence[Json], known: int) -> int:
    """How many messages the stated bound takes for known, of those that are."""
    if bound == "whole":
        return 0
    if bound == "front":
        return min(front_of(messages), known)
    if bound == "new" or known >= len(messages):
        return known
    users = [at for at in range(known + 1) if messages[at]["role"] == "user"]
    return users[-1] if users else 0


def between(count: Count, role: str) -> int:
    def said(reply: str, then: str) -> Tokens:
        last: Json = {"role": role, "content": then}
        if role == "tool":
            last["tool_call_id"] = "call"
        reply_ = {"role": "assistant", "content": reply}
        return count([{"role": "user", "content": "One."}, reply_, last], ())

    whole = said("Two.", "Three.")
    begins = common_prefix(whole, said("Two.", OTHER))
    same_end = common_prefix(whole[::-1], said("Two!", "Three.")[::-1])
    return int(begins - (len(whole) - same_end))


def _equal(one: Sequence[str], other: Sequence[str]) -> int:
    """How many are the same from the start; at least 1, which stands for the tools."""
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return max(number, 1)
    return min(len(one), len(other))
