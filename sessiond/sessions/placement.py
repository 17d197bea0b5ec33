"""Where in a prefill the state is worth keeping: a pure function of the prompt's shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sessiond.sessions.prompt import Boundaries
from sessiond.store.loss import Rank

MOST_STEPS = 4
STEP_MIN = 512
"""Tokens: less than this is evaluated again about as fast as a snapshot is restored."""
LEAST_RATIO = 4.0
NEAR = 16
"""Tokens: a message that begins this close behind the landing is reached from there; between two
turns there are only the template's own tokens."""


@dataclass(frozen=True, slots=True)
class Place:
    """State of the first `position` tokens is to be captured."""

    position: int
    rank: Rank


def places(
    prompt_length: int,
    landing: int,
    boundaries: Boundaries,
    *,
    most_steps: int = MOST_STEPS,
    step_min: int = STEP_MIN,
    marked: Rank = Rank.LAST_BOUNDARY,
) -> tuple[Place, ...]:
    """Where to capture while `prompt[landing:]` is evaluated: ascending, between the two ends.

    People and agents go back to where a message began and ask the same again, so those places come
    first, and the marked ones, with the rank `marked`; P - 1 and not P, because state has no logits
    and the last token is evaluated anew. Anything else is a rewind of unknown length: steps whose
    distances from the end grow by a ratio leave it at most that many times the tokens it took back.
    A prefill whose client leaves keeps what it has at the last of them. Of places that coincide the
    later named rank stays, and no step is closer than `step_min` tokens to another place or to the
    landing. The state after the reply is captured too, as Rank.END.
    """
    last = prompt_length - 1
    ranks = {last: Rank.LAST_BOUNDARY}
    ranks |= dict.fromkeys(boundaries.users, Rank.LAST_BOUNDARY)
    ranks |= dict.fromkeys(boundaries.marked, marked)
    if boundaries.front is not None:
        ranks[boundaries.front] = Rank.FRONT
    near = landing + NEAR if landing else 0
    ranks = {
        at: rank
        for at, rank in ranks.items()
        if near < at < prompt_length or (at == last and landing < last)
    }
    for at in _steps(last, landing, most_steps, step_min):
        if _distance(at, [*ranks, landing]) >= step_min:
            ranks[at] = Rank.STEP
    return tuple(Place(at, ranks[at]) for at in sorted(ranks))


def _steps(last: int, landing: int, most: int, shortest: int) -> Iterator[int]:
    """Longer prefills get a larger ratio, so that the steps reach over all of them."""
    span = last - landing
    if not most or span < shortest:
        return
    ratio = max(LEAST_RATIO, (span / shortest) ** (1 / most))
    for step in range(most):
        at = last - round(shortest * ratio**step)
        if at <= landing:
            return
        yield at


def _distance(at: int, others: Iterable[int]) -> int:
    return min(abs(at - other) for other in others)
