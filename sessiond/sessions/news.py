"""What a model does not know yet of a front that changed: from its lines and earlier notes. Pure.

A line is known by what may not change in it, and by the less indented lines above it, which say
what it belongs to. What several lines have in common is told again rather than taken for known.
Where lines come and go, all that may change is told as it is now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sessiond.sessions.volatility import Volatility

HEADING = "Changed since the system prompt above was written:"
WHOLE = "All that changes in the system prompt above, as it is now:"
NOTHING = "(nothing)"
Place = tuple[str, ...]
"""A line and its headings, without what may change."""


class News:
    """`stays` is the front that the model has read, `now` what the client says it is."""

    def __init__(self, stays: Sequence[str], now: Sequence[str], volatility: Volatility) -> None:
        self._read, self._now = _lines(stays), _lines(now)
        self._texts = now
        self._volatility = volatility

    def after(self, notes: Iterable[str]) -> str:
        """A note of the lines that the model, after these notes, has not read as they are now.

        Empty where there is none. Raises InvalidRequest as `Volatility.mask`.
        """
        before = list(notes)
        if len(self._read) != len(self._now) or any(n.startswith(WHOLE) for n in before):
            whole = self._whole()
            return "" if before[-1:] == [whole] else whole
        changed = self._changed(before)
        told = sorted({at for i in changed for at in (i, *_headings(self._now, i))})
        lines = [self._now[at] for at in told if self._now[at].strip()]
        return "\n".join((HEADING, *lines)) if lines else ""

    def _changed(self, notes: Sequence[str]) -> list[int]:
        known: list[str | None] = list(self._read)
        if notes:
            places = defaultdict[Place, list[int]](list)
            for at, place in enumerate(self._places(self._now)):
                places[place].append(at)
            for note in notes:
                self._learn(known, places, note.splitlines()[1:])
        return [at for at, line in enumerate(self._now) if known[at] != line]

    def _whole(self) -> str:
        masked = (self._volatility.mask(text) for text in self._texts)
        settled = {line for text in masked for line in text.splitlines()}
        lines = [line for line in self._now if line.strip() and line not in settled]
        return "\n".join((WHOLE, *(lines or [NOTHING])))

    def _learn(
        self, known: list[str | None], places: Mapping[Place, list[int]], told: Sequence[str]
    ) -> None:
        for line, place in zip(told, self._places(told), strict=True):
            found = places.get(place, [])
            for at in found:
                known[at] = line if len(found) == 1 else None

    def _places(self, lines: Sequence[str]) -> list[Place]:
        masked = [self._volatility.mask(line) for line in lines]
        return [
            (masked[at], *(masked[heading] for heading in _headings(lines, at)))
            for at in range(len(lines))
        ]


def _lines(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines()]


def _headings(lines: Sequence[str], index: int) -> Iterator[int]:
    indent = _indent(lines[index])
    while index and indent:
        index -= 1
        if lines[index].strip() and _indent(lines[index]) < indent:
            indent = _indent(lines[index])
            yield index


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
