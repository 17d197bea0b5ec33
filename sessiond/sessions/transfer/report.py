"""What was taken of a file."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.sessions.turn import SessionSummary


@dataclass(frozen=True, slots=True)
class ImportReport:
    """`tokens` of all turns. Of the file's state files `state_taken` are in the store now, with
    `state_bytes`; `state_skipped` are not, and `skipped_because` says why: their tokens are read
    again on use. `responses_dropped`: ids that another session's responses have, or all where they
    are not taken from who sent the file; the turns came without them.
    """

    session: SessionSummary
    turns: int
    tokens: int
    state_taken: int
    state_bytes: int
    state_skipped: int
    skipped_because: str
    responses_dropped: int
