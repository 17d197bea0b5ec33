"""What becomes of a request that rewrites history: let through, and as what, or refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.sessions.explanation import Outcome
from sessiond.sessions.rewrite import Rewrite


@dataclass(frozen=True, slots=True)
class Extent:
    """All in tokens. `session`: the line as it was. `prompt`: the request. `reusable`: what both
    begin with. `front`: system prompt and tools of the request. `told`: the line as a client tells
    it, without reasoning: what is not sent in any case is not what a compaction saves.
    """

    session: int
    prompt: int
    reusable: int
    front: int
    told: int

    @property
    def halved(self) -> bool:
        """Whether what follows the front has at most half the tokens it had."""
        return 2 * (self.prompt - self.front) <= self.told - self.front

    @property
    def discarded(self) -> int:
        return self.session - self.reusable


def judge(
    rewrite: Rewrite, extent: Extent, policy: str, *, declared: bool, max_rewind: int
) -> Outcome:
    """`declared`: the client or a person said that this one is a compaction.

    With quite another system prompt it may be a title request of a client without tools, which is
    never refused; nor is what loses nothing.
    """
    if declared:
        return "compacted"
    if extent.discarded <= 0:
        return "rewound"
    if rewrite.stranger:
        return "forked"
    if not rewrite.in_front:
        if extent.halved:
            return "compacted"
        if extent.discarded <= max_rewind:
            return "rewound"
    return "refused" if policy == "append-only" else "forked"
