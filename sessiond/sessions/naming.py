"""Full names of sessions: `owner/name`, or the plain `name` for those of the house.

A client's name has no slash, so a full name is never ambiguous.
"""

from __future__ import annotations

HOUSE = ""
"""Whose sessions those are that belong to no owner of API keys."""


def full_name(owner: str, name: str) -> str:
    return f"{owner}/{name}" if owner else name


def owner_of(full: str) -> str:
    return full.rpartition("/")[0]


def called(full: str) -> str:
    """The name as its owner says it, and as it stands in what the owner is told."""
    return full.rpartition("/")[2]
