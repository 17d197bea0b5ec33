"""What a session's file is called."""

from __future__ import annotations

import re

SUFFIX = ".sessiond"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def file_name(session: str) -> str:
    """Of characters that are safe on every system."""
    plain = _UNSAFE.sub("_", session).strip("._-")[:100]
    return f"{plain or 'session'}{SUFFIX}"
