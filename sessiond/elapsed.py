"""How long something took."""

from __future__ import annotations

import time


def ms_since(began: float) -> float:
    """Milliseconds; `began` is in seconds of time.monotonic()."""
    return (time.monotonic() - began) * 1e3
