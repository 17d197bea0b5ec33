"""The context, against what agents need before the first word is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sessiond.cli.doctor.finding import Finding, note, ok, warning

FRONTS = {
    "Claude Code": 17_900,
    "Qwen Code": 14_600,
    "Codex": 9_100,
    "OpenCode": 6_900,
    "pi": 1_400,
}
"""Tokens of system prompt and tools, measured; a project's own instructions come on top."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`tokens` is what one conversation may have, 0 where that is not known. `trained`: by the
    model; `measured`: told by the daemon.
    """

    tokens: int
    trained: int = 0
    measured: bool = False


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.tokens:
        return
    room = f"{'' if facts.measured else 'about '}{facts.tokens:,} tokens for a conversation"
    none = [name for name, front in FRONTS.items() if front >= facts.tokens]
    tight = [name for name, front in FRONTS.items() if front < facts.tokens < 2 * front]
    told = ", ".join(f"{name} {FRONTS[name]:,}" for name in none + tight)
    if none:
        yield warning(
            "context",
            f"{room}; agents begin with {told}",
            f"{_list(none)} cannot begin: the prompt is refused as too long.",
            _larger(facts),
        )
    elif tight:
        yield note(
            "context",
            f"{room}; agents begin with {told}",
            f"{_list(tight)} must compact very soon.",
            _larger(facts),
        )
    else:
        yield ok("context", f"{room}, enough for {_list(list(FRONTS))}")


def _larger(facts: Facts) -> str:
    if 0 < facts.trained <= facts.tokens:
        return f"a model trained for more than {facts.trained:,} tokens"
    return "a larger model.n_ctx (0: as many as fit), or a smaller model"


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
