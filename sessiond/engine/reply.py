"""Sampled bytes to visible text: whole characters only, stop strings held back and hidden."""

from __future__ import annotations

import codecs


class ReplyText:
    """The visible text of one reply. Feed it pieces in order; send what it returns at once.

    The stop string that is complete first ends the text, however the bytes were cut into pieces.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self._sent: list[str] = []
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """All visible text so far."""
        return "".join(self._sent)

    def feed(self, piece: bytes) -> str:
        return self._release(self._decoder.decode(piece), final=False)

    def close(self) -> str:
        """What is still held when no more tokens come."""
        return self._release(self._decoder.decode(b"", final=True), final=True)

    def _release(self, text: str, *, final: bool) -> str:
        if self.stopped_by is not None:
            return ""
        pending = self._held + text
        found = [(at, stop) for stop in self._stop if (at := pending.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            visible, self._held = pending[:at], ""
        else:
            keep = 0 if final else self._possible_stop(pending)
            visible, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
        if visible:
            self._sent.append(visible)
        return visible

    def _possible_stop(self, pending: str) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        for length in range(min(len(pending), max(map(len, self._stop), default=1) - 1), 0, -1):
            if any(stop.startswith(pending[-length:]) for stop in self._stop):
                return length
        return 0
