"""httpx without its own command line, which takes as long to import as all the rest of it."""

from __future__ import annotations

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # as if it was not installed

import httpx  # noqa: E402

__all__ = ["httpx"]
