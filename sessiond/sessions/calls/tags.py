"""How models mark their reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.sessions.calls.harmony import CHANNEL, ENDS, START


@dataclass(frozen=True, slots=True)
class Tag:
    """The first of `closes` ends it; one of `before` does, too, and begins something else."""

    opens: str
    closes: tuple[str, ...]
    before: tuple[str, ...] = ()


_NAMES = ("think", "thinking", "thought", "reasoning", "seed:think")
TAGS = (
    *(Tag(f"<{name}>", (f"</{name}>",)) for name in _NAMES),
    Tag("[THINK]", ("[/THINK]",)),
    Tag("<|channel>thought", ("<channel|>",)),
    Tag("<|START_THINKING|>", ("<|END_THINKING|>",)),
    Tag("◁think▷", ("◁/think▷",)),
)
ANALYSIS = Tag("<|channel|>analysis<|message|>", ENDS, (START, CHANNEL))
CONTROL = (
    *("<|channel>", "<channel|>"),
    *(mark for tag in TAGS for mark in (tag.opens, *tag.closes)),
)
"""Tokens that have to be printed to be seen, where a model has them as control tokens."""


def opened_by(prompt: str) -> Tag | None:
    """The tag that a prompt ends with: the reply begins inside it."""
    end = prompt.rstrip()
    return next((tag for tag in (*TAGS, ANALYSIS) if end.endswith(tag.opens)), None)
