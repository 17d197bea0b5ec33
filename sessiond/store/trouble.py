"""A condition that lasts, as a full disk does: said once when it begins, once when it is over."""

from __future__ import annotations

import logging
import re
import time
from threading import Lock

QUIET_S = 600.0
"""The same is not said again within this time, though it was over in between."""
FRESH_S = 60.0
"""So long after the last failure it still counts: nobody may have tried again since."""
_FIGURES = re.compile(r"\d[\d.]*( ?[kKMGT]?i?B(ytes?)?)?")


class Trouble:
    """Any thread. `over` is the sentence for its end."""

    def __init__(self, logger: logging.Logger, over: str) -> None:
        self._logger = logger
        self._over = over
        self._lock = Lock()
        self._text = ""
        self._least = 0
        self._failed = 0.0
        self._said: dict[str, float] = {}
        self._open = False

    @property
    def text(self) -> str:
        """What is wrong at present, "" where nothing is."""
        with self._lock:
            fresh = time.monotonic() - self._failed < FRESH_S
            return self._text if self._text and fresh else ""

    def begins(self, text: str, size: int = 0, *, cause: str = "") -> None:
        """Something of `size` bytes could not be done, because of what `text` says.

        It is the same condition for as long as `cause`, or else the text, differs in figures only.
        """
        now, shape = time.monotonic(), _FIGURES.sub("#", cause or text)
        with self._lock:
            self._least = min(self._least, size) if self._text else size
            self._text, self._failed = text, now
            since = self._said.get(shape)
            if since is not None and (self._open or now - since < QUIET_S):
                return
            self._said[shape], self._open = now, True
        self._logger.warning("%s", text)

    def ends(self, size: int = 0) -> None:
        """Something of `size` bytes was done: enough where it is as large as what was not."""
        with self._lock:
            if not self._text or size < self._least:
                return
            self._text, said, self._open = "", self._open, False
            now = time.monotonic()
            self._said = {what: at for what, at in self._said.items() if now - at < QUIET_S}
        if said:
            self._logger.info("%s", self._over)
