"""The turns of the last day, as they ended: in memory only, for plots over time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sessiond.sessions.schema import SessionRecord
from sessiond.sessions.turn import MissCause, Source, TurnReport

WINDOW_S = 86_400.0
MOST = 20_000
"""Turns that are kept, of the last day; where there were more, the window is shorter."""
MOST_SHOWN = 600
SPANS = 96
_WIDTHS_S = (10, 30, 60, 120, 300, 600, 900)


@dataclass(frozen=True, slots=True)
class PastTurn:
    """`time` in Unix seconds when it ended, `session` the session's id; the rest in tokens."""

    time: float
    session: str
    source: Source
    prompt_tokens: int
    cached_tokens: int
    restored_tokens: int
    prefilled_tokens: int
    ttft_ms: float
    miss: MissCause | None


@dataclass(frozen=True, slots=True)
class Span:
    """`seconds` from `start` on, Unix seconds, with the sums of the turns that ended in them.

    `missed` turns evaluated old tokens again.
    """

    start: float
    seconds: int
    turns: int
    prompt_tokens: int
    cached_tokens: int
    restored_tokens: int
    prefilled_tokens: int
    missed: int


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """From `since` to `until`, Unix seconds. `spans` without turns are left out.

    `shown` are all turns, or of many those that took the shortest, the middle and the longest time
    to the first token; a `session` is told by its name, "" if it is gone.
    """

    since: float
    until: float
    turns: int
    spans: tuple[Span, ...]
    shown: tuple[PastTurn, ...]


class History:
    """Bounded, whatever happens. Event loop only."""

    def __init__(self, began: float, most: int = MOST) -> None:
        """`began` is when the daemon started, in Unix seconds."""
        self.began = began
        self._turns: deque[PastTurn] = deque(maxlen=most)
        self._full_since = began

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, record: SessionRecord, report: TurnReport, now: float) -> None:
        if len(self._turns) == self._turns.maxlen:
            self._full_since = self._turns[0].time
        self._turns.append(
            PastTurn(
                time=now,
                session=record.id,
                source=report.source,
                prompt_tokens=report.prompt_tokens,
                cached_tokens=report.cached_tokens,
                restored_tokens=report.restored_tokens,
                prefilled_tokens=report.prefilled_tokens,
                ttft_ms=report.ttft_ms,
                miss=report.miss.cause if report.miss else None,
            )
        )

    def report(
        self, now: float, records: Iterable[SessionRecord], owner: str | None = None
    ) -> HistoryReport:
        """`records` of all sessions there are; the turns of one `owner`'s only, if it is given."""
        names = {one.id: one.name for one in records if owner in (None, one.owner)}
        since = min(now, max(self._full_since, now - WINDOW_S))
        turns = [
            turn
            for turn in self._turns
            if turn.time >= since and (owner is None or turn.session in names)
        ]
        shown = (replace(turn, session=names.get(turn.session, "")) for turn in thinned(turns))
        return HistoryReport(since, now, len(turns), spans(turns, since, now), tuple(shown))


def spans(turns: Iterable[PastTurn], since: float, until: float) -> tuple[Span, ...]:
    """At most SPANS + 1 of one width, at whole multiples of it."""
    width = next((w for w in _WIDTHS_S if (until - since) / w <= SPANS), _WIDTHS_S[-1])
    found: defaultdict[int, list[PastTurn]] = defaultdict(list)
    for turn in turns:
        found[int(turn.time // width)].append(turn)
    return tuple(_span(at * width, width, found[at]) for at in sorted(found))


def thinned(turns: Sequence[PastTurn], most: int = MOST_SHOWN) -> list[PastTurn]:
    """At most `most` of them by time: in each stretch of it, of each source, the extremes."""
    if len(turns) <= most:
        return list(turns)
    sources = {turn.source for turn in turns}
    stretches = max(1, most // (3 * len(sources)))
    begin, end = turns[0].time, turns[-1].time
    width = (end - begin) / stretches or 1.0
    groups: defaultdict[tuple[int, Source], list[PastTurn]] = defaultdict(list)
    for turn in turns:
        at = min(int((turn.time - begin) / width), stretches - 1)
        groups[at, turn.source].append(turn)
    kept = [turn for group in groups.values() for turn in _extremes(group)]
    return sorted(kept, key=lambda turn: turn.time)


def _extremes(group: list[PastTurn]) -> list[PastTurn]:
    ranked = sorted(group, key=lambda turn: turn.ttft_ms)
    return [ranked[at] for at in sorted({0, len(ranked) // 2, len(ranked) - 1})]


def _span(start: float, seconds: int, turns: list[PastTurn]) -> Span:
    return Span(
        start=float(start),
        seconds=seconds,
        turns=len(turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        cached_tokens=sum(turn.cached_tokens for turn in turns),
        restored_tokens=sum(turn.restored_tokens for turn in turns),
        prefilled_tokens=sum(turn.prefilled_tokens for turn in turns),
        missed=sum(turn.miss is not None for turn in turns),
    )
