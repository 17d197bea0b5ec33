"""All ways to write tool calls into a reply. What only looks like a call stays text."""

from __future__ import annotations

from sessiond.sessions.calls import bare, code, harmony, mistral, tagged
from sessiond.sessions.calls.call import Format, Taken

_FORMATS: tuple[Format, ...] = (
    tagged.take,
    mistral.take,
    harmony.take,
    bare.take,
    code.take,
)


def take_calls(text: str) -> Taken:
    """The text without its calls, and the calls; the first format that finds any is the one."""
    for take in _FORMATS:
        if taken := take(text):
            return taken
    return text, ()
