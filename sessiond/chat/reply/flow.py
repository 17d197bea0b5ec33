"""Text on its way to a reader, without the white space at its ends."""

from __future__ import annotations

_MOST = 4_096
"""Characters of white space held back."""


class Flow:
    """White space is held back until it is known what comes after it."""

    def __init__(self) -> None:
        self._held = ""
        self.begun = False

    def take(self, text: str, trimmed: bool) -> str:
        """What can be shown now. `trimmed`: white space before the first word is dropped."""
        if self._held:
            text = self._held + text
        if not self.begun and trimmed:
            text = text.lstrip()
        body = text.rstrip()
        if not body and len(text) < _MOST:
            self._held = text
            return ""
        body = body or text
        self._held = text[len(body) :]
        self.begun = True
        return body

    def end(self) -> str:
        """What was held back; then it begins anew."""
        held, self._held, self.begun = self._held, "", False
        return held
