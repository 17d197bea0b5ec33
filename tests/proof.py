"""What a proof counted, for the page that tells of a full run; nothing where nobody asks."""

from __future__ import annotations

import json
import os
from pathlib import Path

PLACE = "PROOF_COUNTS"
"""Names the file that gets a line of JSON for every proof. `make proof-durability` sets it."""


def record(proof: str, **counts: int | float | str | dict[str, int]) -> None:
    """Numbers of one proof that has passed, under names a reader understands."""
    if place := os.environ.get(PLACE):
        with Path(place).open("a") as file:
            file.write(json.dumps({"proof": proof, **counts}) + "\n")
