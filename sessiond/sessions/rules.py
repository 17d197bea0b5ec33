"""What the owner of the daemon decided about histories. Fixed while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.sessions.schema import SessionRecord


@dataclass(frozen=True, slots=True)
class Rules:
    """`policy` holds for sessions that a person named, `auto_policy` for all others. `max_rewind`
    in tokens. `reasoning`: "keep" or "template". `pinned_front`: what may change in a front.
    """

    policy: str = "append-only"
    auto_policy: str = "fork"
    max_rewind: int = 2048
    reasoning: str = "keep"
    pinned_front: tuple[str, ...] = ()

    def policy_of(self, record: SessionRecord, asked: str | None = None) -> str:
        """`asked`: by this request."""
        default = self.policy if record.named else self.auto_policy
        return asked or record.policy or default

    def pinned_front_of(self, record: SessionRecord) -> tuple[str, ...]:
        return self.pinned_front if record.pinned_front is None else record.pinned_front
