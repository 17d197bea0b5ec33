"""Whether a request rewrites a line in place: it differs, but what came later is still there. Pure.

A request that goes on from an earlier turn brings nothing of the line it leaves. One that rewrites
brings replies that were given further down; they are what it is known by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sessiond.sessions.cause import Cause, Change
from sessiond.sessions.diagnosis import diagnose
from sessiond.sessions.difference import Difference, first_difference, front_length, system_text
from sessiond.sessions.transcript import Chat, Content, Message, digest, tools_digest
from sessiond.sessions.tree import Match, SessionTree

OTHER_AGENT = 0.5
"""System prompts that share less of their words, with other tools, are those of another agent."""
_NOTHING_SAID = digest(Message("assistant", ""))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`leaf` is the last turn of the line whose history was changed.

    `in_front`: the system prompt or the tools changed. `change`: nothing else did but this.
    `stranger`: the system prompt is quite another one, and there are no tools.
    """

    leaf: int
    difference: Difference
    cause: Cause
    change: Change | None
    in_front: bool
    stranger: bool = False


def find_rewrite(content: Content, match: Match, tree: SessionTree) -> Rewrite | None:
    """Raises nothing; None for what only adds, goes back, or begins anew."""
    if not isinstance(content, Chat):
        return None
    leaf = _changed_line(content, match, tree)
    known = None if leaf is None else tree.conversation(leaf)
    if leaf is None or not isinstance(known, Chat):
        return None
    difference = first_difference(known, content)
    if difference is None:
        return None
    front = max(front_length(known.messages), front_length(content.messages))
    in_front = difference.field == "tools" or difference.message < front
    cause, change = diagnose(known, content, difference, in_front)
    unlike = in_front and not content.tools and _unlike(system_text(known), system_text(content))
    return Rewrite(leaf, difference, cause, change, in_front, stranger=unlike)


def _changed_line(content: Chat, match: Match, tree: SessionTree) -> int | None:
    """The leaf, below the matched turn, whose line has most of the replies the request brings.

    A line must have given some of them. Of those that were only told of them, by a client that
    rewrites again and again, the last has most.
    """
    brought = _brought(content.messages, match)
    given = Counter({n for reply, question in brought for n in tree.replied(reply, question)})
    if not given:
        return None
    own = _counts(given, match.turn, tree)
    line = _most(own, own, tree)
    if line is None or _is_other_agent(line, content, tree):
        return None
    quoted = Counter(n for reply, _ in brought for n in tree.quoted(reply))
    last = _most(_counts(given + quoted, match.turn, tree), own, tree) if quoted else None
    return line if last is None or _is_other_agent(last, content, tree) else last


def _brought(messages: Sequence[Message], match: Match) -> set[tuple[bytes, bytes]]:
    """Replies, each with what it replied to, that no line has where the request has them."""
    start = match.begun if match.echo is None else max(match.begun, match.echo.message + 1)
    before = digest(messages[start - 1]) if start else b""
    digests = [digest(message) for message in messages[start:]]
    said = zip(messages[start:], digests, (before, *digests), strict=False)
    return {
        (reply, question)
        for one, reply, question in said
        if one.role == "assistant" and reply != _NOTHING_SAID
    }


def _most(counts: Mapping[int, int], own: Mapping[int, int], tree: SessionTree) -> int | None:
    found = [(counts[leaf], own.get(leaf, 0), leaf) for leaf in tree.leaves() if counts.get(leaf)]
    return max(found)[2] if found else None


def _counts(brought: Counter[int], above: int | None, tree: SessionTree) -> dict[int, int]:
    """For all turns below `above`, how many of `brought` are on their path from there."""
    counts: dict[int, int] = {}
    starts = tree.alike(above)
    for turn in tree:
        if turn.parent in starts or turn.parent in counts:
            counts[turn.number] = counts.get(turn.parent or 0, 0) + brought[turn.number]
    return counts


def _is_other_agent(leaf: int, request: Chat, tree: SessionTree) -> bool:
    """A title request, a summary, a sub-agent: other tools and quite another system prompt."""
    known = tree.path(leaf)[0].content
    if not isinstance(known, Chat) or tools_digest(known.tools) == tools_digest(request.tools):
        return False
    return _unlike(system_text(known), system_text(request))


def _unlike(before: str, after: str) -> bool:
    """Whether two system prompts share less than half of their words."""
    words, others = Counter(before.split()), Counter(after.split())
    total = words.total() + others.total()
    return total > 0 and 2 * (words & others).total() / total < OTHER_AGENT
