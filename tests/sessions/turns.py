"""Turns and trees for the tests of the sessions layer."""

from __future__ import annotations

from collections.abc import Sequence

from sessiond.engine.events import FinishReason
from sessiond.engine.memory import as_tokens
from sessiond.sessions.transcript import Chat, Content, Message, Text
from sessiond.sessions.tree import Turn, TurnStats
from sessiond.sessions.turn import Miss

STATS = TurnStats(
    prompt_tokens=12,
    cached=7,
    restored=3,
    prefilled=5,
    source="disk",
    miss=Miss("evicted", "gone", 4),
    ttft_ms=1.5,
    prompt_ms=0.5,
)


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def make_turn(
    number: int,
    parent: int | None = None,
    content: Content | str = "hi",
    reply: str = "ok",
    *,
    kept: int = 0,
    prompt: Sequence[int] = (1, 2),
    replied: Sequence[int] = (3,),
    created: float = 0.0,
    finish_reason: FinishReason = "stop",
    stats: TurnStats = STATS,
) -> Turn:
    """`content` as a string is what one user message says."""
    return Turn(
        number=number,
        parent=parent,
        content=Chat((user(content),)) if isinstance(content, str) else content,
        kept=kept,
        prompt_tokens=as_tokens(prompt),
        reply_tokens=as_tokens(replied),
        reply=reply,
        finish_reason=finish_reason,
        tokenizer="vocabulary",
        fingerprint="print",
        model="model",
        settings="settings",
        stats=stats,
        created=created or float(number),
    )


def text_turn(number: int, parent: int | None, prompt: str, reply: str) -> Turn:
    return make_turn(number, parent, Text(prompt), reply)


def values(turn: Turn) -> dict[str, object]:
    """All of a turn, comparable."""
    names = ("number", "parent", "content", "kept", "reply", "finish_reason", "tokenizer")
    more = ("fingerprint", "model", "settings", "stats", "created")
    return {name: getattr(turn, name) for name in (*names, *more)} | {
        "prompt_tokens": turn.prompt_tokens.tolist(),
        "reply_tokens": turn.reply_tokens.tolist(),
    }
