"""Snapshots for a ring, whose payload is known from their key, and lines that talk."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from sessiond.engine.memory import Tokens
from sessiond.store.loss import Rank
from sessiond.store.ring import Ring
from sessiond.store.ring_entry import Refusal, Reservation
from sessiond.store.slabs import PAGE
from tests.store.samples import line


def reserved(
    ring: Ring,
    tokens: Tokens,
    rank: Rank = Rank.BOUNDARY,
    *,
    line: Hashable = "a",
    owner: str = "",
    size: int = PAGE,
) -> Reservation:
    reservation = ring.reserve(owner, line, tokens, rank, size)
    assert isinstance(reservation, Reservation), reservation
    return reservation


def bytes_of(key: str, size: int) -> bytes:
    return np.random.default_rng(int(key[:16], 16)).bytes(size)


def published(ring: Ring, tokens: Tokens, rank: Rank = Rank.BOUNDARY, **more: object) -> str:
    """Reserves, fills and publishes; the key."""
    reservation = reserved(ring, tokens, rank, **more)  # type: ignore[arg-type]
    size = len(reservation.buffer)
    reservation.buffer[:] = bytes_of(reservation.key, size)
    assert ring.publish(reservation, size)
    return reservation.key


def offered(ring: Ring, tokens: Tokens, rank: Rank, name: Hashable) -> None:
    """As the engine does it: what is there already, or has no room, is not written."""
    reservation = ring.reserve("", name, tokens, rank, PAGE)
    if not isinstance(reservation, Refusal):
        reservation.buffer[:8] = b"snapshot"
        ring.publish(reservation, PAGE)
    stats = ring.stats()
    assert stats.bytes <= stats.budget


@dataclass
class Talk:
    """A session: a front, then turns of a user message and a reply, with what is captured."""

    name: str
    tokens: Tokens
    front: int = 1200
    user: int = 60
    reply: int = 240
    turns: int = 0
    positions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, number: int, turns: int) -> Talk:
        return cls(f"s{number}", line(1200 + turns * 300, seed=number))

    @property
    def end(self) -> int:
        return self.front + self.turns * (self.user + self.reply)

    def turn(self, ring: Ring) -> None:
        """Front, the start of the user's message, the prompt but for its last token, the end."""
        start = self.end
        self.turns += 1
        places = [
            (self.front, Rank.FRONT),
            (start, Rank.LAST_BOUNDARY),
            (start + self.user - 1, Rank.BOUNDARY),
            (self.end, Rank.END),
        ]
        for position, rank in places:
            offered(ring, self.tokens[:position], rank, self.name)
        self.positions.append(start)
        ring.demote(self._outgrown(ring))

    def _outgrown(self, ring: Ring) -> list[str]:
        """Of each rank all but the last four, as sessions do it on a line that never goes back."""
        own = sorted((e for e in ring.entries() if e.line == self.name), key=lambda e: e.position)
        ranks = (Rank.LAST_BOUNDARY, Rank.END)
        return [e.key for rank in ranks for e in [e for e in own if e.rank is rank][:-4]]

    def evaluated(self, ring: Ring, position: int) -> int:
        """Tokens to evaluate to get to `position`, from the best snapshot there is."""
        found = ring.find("", self.tokens[:position])
        return position - (found[-1].position if found else 0)
