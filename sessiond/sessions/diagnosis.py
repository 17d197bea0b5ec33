"""What a difference between two conversations is called: the cause that a person is told. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sessiond.sessions.cause import Cause, Change, volatile_change
from sessiond.sessions.difference import Difference, front_length, parting, system_text
from sessiond.sessions.transcript import Chat, Message, digest


def diagnose(
    known: Chat, request: Chat, difference: Difference, in_front: bool
) -> tuple[Cause, Change | None]:
    """With the change that alone makes the difference, where it is a small one."""
    if difference.field == "tools":
        return "tools_changed", None
    change = _change(known, request, difference, in_front)
    if change is not None:
        return change.kind, change
    if in_front:
        return "system_changed", None
    return _of_history(known.messages, request.messages), None


def _change(known: Chat, request: Chat, difference: Difference, in_front: bool) -> Change | None:
    """What alone changed in the front, or in a message where the next one is in its place."""
    if difference.field != "content":
        return None
    if not in_front:
        alone = _goes_on(known.messages, request.messages, difference.message)
        return volatile_change(difference.before, difference.after) if alone else None
    if front_length(known.messages) != front_length(request.messages):
        return None
    return volatile_change(system_text(known), system_text(request))


def _goes_on(known: Sequence[Message], request: Sequence[Message], index: int) -> bool:
    below = slice(index + 1, index + 2)
    after, now = known[below], request[below]
    return bool(after) and bool(now) and digest(after[0]) == digest(now[0])


def _of_history(known: Sequence[Message], request: Sequence[Message]) -> Cause:
    index = parting(known, request)
    before = [digest(message) for message in known[index:]]
    after = [digest(message) for message in request[index:]]
    kept = _kept(before, after)
    if not kept:
        return "history_edited"
    stood = before[: len(kept)]
    if stood != kept and sorted(stood) == sorted(kept):
        return "reordered"
    new = after.index(kept[0])
    gone = _place(before, after[new:])
    if gone > new > 0:
        return "history_summarised"
    return (
        "front_trimmed" if gone and not new and index <= front_length(known) else "history_edited"
    )


def _kept(before: Sequence[bytes], after: Sequence[bytes]) -> list[bytes]:
    """Those of `after` that were there before, each as often as it was."""
    left, kept = Counter(before), []
    for one in after:
        if left[one]:
            left[one] -= 1
            kept.append(one)
    return kept


def _place(before: Sequence[bytes], kept: Sequence[bytes]) -> int:
    """Where in `before` the beginning of `kept` goes on longest: words may come twice."""
    found = [index for index, one in enumerate(before) if one == kept[0]]
    return max(found, key=lambda index: _shared(before[index:], kept))


def _shared(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
