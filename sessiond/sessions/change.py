"""What a person sets of a session, as fields of its record."""

from __future__ import annotations

from typing import Any

from sessiond.sessions.turn import SessionChange
from sessiond.sessions.volatility import Volatility


def fields_of(change: SessionChange) -> dict[str, Any]:
    """Raises InvalidRequest."""
    fields: dict[str, Any] = {}
    if change.policy is not None:
        fields["policy"] = None if change.policy == "default" else change.policy
    if change.pinned is not None:
        fields["pinned"] = change.pinned
    if change.pinned_front is not None:
        given = change.pinned_front
        fields["pinned_front"] = None if given == ("default",) else Volatility(given).names
    return fields
