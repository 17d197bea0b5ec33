"""A whole terminal for one picture, drawn anew in place; what was there before comes back."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """Use it as a context manager. Keys are read where stdin is a terminal, Ctrl-C interrupts."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin, termios.TCSANOW)
        self._write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write(_LEAVE)
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def show(self, lines: Sequence[str]) -> None:
        """At most as many as the terminal has."""
        self._write(_HOME + "\n".join(line + _REST_OF_LINE for line in lines) + _REST)

    def wait_for(self, keys: str, seconds: float) -> bool:
        """Whether one of `keys` is pressed within so many seconds; others are swallowed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0]:
                pressed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
                if not pressed or any(key in pressed for key in keys):
                    return True
        return False

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
