"""What a rewrite of history is called, for the client that is refused and for `explain`. Pure.

The sentence of a refusal is read aloud by some clients and searched by others for words of a
context overflow, so it has none of those and quotes nothing but a clock, a date or an id.
"""

from __future__ import annotations

import re
import shlex
from urllib.parse import quote

from sessiond.sessions.cause import Cause
from sessiond.sessions.explanation import Explanation, FirstDiff, Outcome
from sessiond.sessions.policy import Extent
from sessiond.sessions.rewrite import Rewrite

SENTENCE = 250
"""Characters of a refusal's message, at most."""
_VALUE, _NAME = 24, 40
_MISLEADING = re.compile(
    "context|token|length|limit|exceed|maximum|too long|window|overflow", re.IGNORECASE
)
"""Words by which clients know an overflow; an id may have one in it."""
_WAYS = (
    "Start a new chat.",
    "sessiond set {name} --policy fork   (rewrites go on beside the old line, read again)",
    "sessiond fork {name} NEW --at TURN   (go on from an earlier turn under another name)",
    "Header X-Session-Compact: allow, or POST /v1/sessions/{address}/compact: lets one through",
)
_FRONT_WAY = (
    "sessiond set {name} --pinned-front clock --pinned-front date --pinned-front id   "
    "(the first system prompt stays; what changed in it is told with the next message)"
)


def explain(
    name: str,
    rewrite: Rewrite,
    extent: Extent,
    outcome: Outcome,
    *,
    prefill_ms: float,
    created: float,
) -> Explanation:
    difference = rewrite.difference
    what = described(rewrite)
    before, after = difference.excerpts
    quoted, address = shlex.quote(name), quote(name, safe="")
    return Explanation(
        turn=None,
        leaf=rewrite.leaf,
        outcome=outcome,
        cause=rewrite.cause,
        sentence=f"{what[0].upper()}{what[1:]}.",
        message=_refusal(name, what),
        param=difference.param,
        first_diff=FirstDiff(
            difference.message,
            difference.role,
            difference.field,
            difference.char,
            extent.reusable,
        ),
        before=before,
        after=after,
        session_tokens=extent.session,
        reusable_tokens=extent.reusable,
        discarded_tokens=extent.discarded,
        estimated_prefill_ms=prefill_ms,
        ways=tuple(way.format(name=quoted, address=address) for way in _ways(rewrite, outcome)),
        created=created,
    )


def _ways(rewrite: Rewrite, outcome: Outcome) -> tuple[str, ...]:
    """What can be done about a refusal, or about all that is read again; else nothing need be."""
    front = (_FRONT_WAY,) if rewrite.in_front and rewrite.change else ()
    if outcome == "refused":
        return (*front, *_WAYS)
    return front if outcome == "forked" else ()


def described(rewrite: Rewrite) -> str:
    """What changed, as the middle of a sentence."""
    difference, change = rewrite.difference, rewrite.change
    if rewrite.cause == "tools_changed":
        return "the tool definitions changed"
    where = "the system prompt" if rewrite.in_front else _message(difference.message)
    if change is None:
        return f"{where} changed" if rewrite.in_front else _of_history(rewrite.cause, where)
    if change.kind == "whitespace":
        return f"white space in {where} changed"
    values = f" {_value(change.before)} → {_value(change.after)}"
    return f"{where} changed ({_KINDS[change.kind]}{'' if _MISLEADING.search(values) else values})"


def _refusal(name: str, what: str) -> str:
    """With a name that is too long for a sentence left out of the command, which must be there."""
    refusal = f'Not sent: "{_cut(name, _NAME)}" only accepts additions, and {what}. '
    way = "Start a new chat, or: sessiond set {} --policy fork"
    whole = refusal + way.format(shlex.quote(name))
    return whole if len(whole) <= SENTENCE else refusal + way.format("NAME")


_KINDS = {"clock": "clock", "date": "date", "identifier": "id"}


def _of_history(cause: Cause, where: str) -> str:
    sentences = {
        "history_summarised": f"earlier messages from {where} on were replaced by a summary",
        "front_trimmed": "the oldest messages were left out",
        "reordered": f"messages from {where} on are in another order",
    }
    return sentences.get(cause, f"{where} was changed, with later ones still there")


def _message(index: int) -> str:
    return f"message {index + 1}"


def _value(text: str) -> str:
    return _cut(" ".join(text.split()), _VALUE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
