"""How many examples hypothesis draws where a run has to end soon."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def bounded(examples: int) -> settings:
    """The same ones every time, so that it is either red or green."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
