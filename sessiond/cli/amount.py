"""How much of a file has passed, on a terminal; nothing is shown in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

from sessiond.cli import words

EVERY_S = 0.2


def told(parts: Iterable[bytes], verb: str) -> Iterator[bytes]:
    """`parts` as they are; how many bytes have passed stands on stderr meanwhile, in place."""
    if not sys.stderr.isatty():
        yield from parts
        return
    done, shown = 0, 0.0
    try:
        for part in parts:
            done += len(part)
            if time.monotonic() - shown >= EVERY_S:
                shown = time.monotonic()
                _show(f"{verb} {words.size(done)}")
            yield part
    finally:
        _show("")


def _show(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()
