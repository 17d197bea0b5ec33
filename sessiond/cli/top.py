"""`sessiond top`: what is going on, every second anew."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from sessiond.cli import words
from sessiond.cli.listing import together
from sessiond.cli.options import AsJson, Url
from sessiond.cli.output import Cell, Column, print_json, table_lines
from sessiond.cli.screen import Screen
from sessiond.client import Client
from sessiond.sessions.turn import Health, SessionSummary

COLUMNS = (
    Column("NAME", shrink="crop", least=16),
    Column("TITLE", shrink="crop", least=12),
    Column("STATE"),
    Column("LAST", right=True),
    Column("SIZE", right=True),
    Column("HIT", right=True),
)
STATES = {"resident": "in memory", "disk": "on disk", "ledger": "as text"}
STYLES = {"resident": "green", "ledger": "yellow"}
BAR = 20
_PATIENCE = 10
"""Times what the last list took."""
EVALUATED = 'sessiond_evaluated_tokens_total{phase="%s"}'
PROMPT = 'sessiond_prompt_tokens_total{source="%s"}'
Every = Annotated[float, typer.Option(help="Seconds between two pictures.", min=0.05)]
Once = Annotated[bool, typer.Option("--once", help="One picture, as in a pipe.")]


@dataclass(frozen=True, slots=True)
class Picture:
    """Rates in tokens per second since the picture before; `hit_rate` since the daemon began."""

    health: Health
    prefill_per_s: float
    decode_per_s: float
    hit_rate: float
    sessions: list[SessionSummary]


class Watch:
    """Asks the daemon again and again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last, self._at = client.metrics(), time.monotonic()
        self._sessions: list[SessionSummary] = []
        self._list_again = 0.0

    def look(self) -> Picture:
        metrics, now = self._client.metrics(), time.monotonic()
        before, since = self._last, max(now - self._at, 1e-6)
        self._last, self._at = metrics, now

        def rate(phase: str) -> float:
            name = EVALUATED % phase
            return max(0.0, metrics.get(name, 0.0) - before.get(name, 0.0)) / since

        read = metrics.get(PROMPT % "prefill", 0.0)
        reused = sum(metrics.get(PROMPT % source, 0.0) for source in ("disk", "memory"))
        return Picture(
            health=self._client.health(),
            prefill_per_s=rate("prefill"),
            decode_per_s=rate("decode"),
            hit_rate=reused / (read + reused) if read + reused else 0.0,
            sessions=self._listed(now),
        )

    def _listed(self, now: float) -> list[SessionSummary]:
        """A list of very many takes the daemon a while, and is not asked for every time."""
        if now >= self._list_again:
            self._sessions = together(self._client.sessions())
            self._list_again = now + _PATIENCE * (time.monotonic() - now)
        return self._sessions


def top(once: Once = False, every: Every = 1.0, as_json: AsJson = False, url: Url = None) -> None:
    """Watch the daemon: what runs and waits, how fast, what is in memory. q ends it.

    LINES are conversations in the model's memory, RING what it keeps to go back in them, HIT the
    share of what was asked that did not have to be read again. In a pipe there is one picture.
    """
    live = sys.stdout.isatty() and not (once or as_json)
    with Client(url) as client:
        watch = Watch(client)
        if live:
            _live(watch, every)
            return
        time.sleep(every)
        picture = watch.look()
    if as_json:
        print_json(asdict(picture))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(lines(picture, width, None)))


def _live(watch: Watch, every: float) -> None:
    with Screen() as screen:
        pause = min(every, 0.2)
        while not screen.wait_for("q", pause):
            size = shutil.get_terminal_size()
            screen.show(lines(watch.look(), size.columns, size.lines))
            pause = every


def lines(picture: Picture, width: int | None, height: int | None) -> list[str]:
    """The picture, of at most `height` lines; None: as many as it takes."""
    health = picture.health
    shown = [
        f"sessiond  {words.clean(health.model or 'no model')}  {words.clean(_status(health))}",
        f"Turns   {health.running} running, {health.queued} waiting",
        f"Lines   {_bar(health.resident_lines, health.max_lines)}"
        f"  {health.resident_lines} of {health.max_lines} in memory",
        f"Ring    {_share(health.ring_bytes, health.ring_budget)}",
        f"Disk    {_share(health.disk_bytes, health.disk_quota)}",
        f"Speed   {picture.prefill_per_s:,.0f} tokens/s read, "
        f"{picture.decode_per_s:,.0f} tokens/s written, {picture.hit_rate:.0%} hit rate",
    ]
    if health.unsaved_turns:
        shown.append(f"Unsaved {words.counted(health.unsaved_turns, 'turn')} not on disk yet")
    if health.warming:
        waiting = words.counted(health.warming, "session")
        shown.append(f"Warming {waiting} to be read again while nobody waits")
    shown = [line if width is None else line[:width] for line in shown]
    room = None if height is None else max(0, height - len(shown) - 2)
    sessions = picture.sessions[:room]
    if not sessions:
        return shown[:height]
    return [*shown, "", *table_lines(COLUMNS, _rows(sessions), width)]


def _rows(sessions: Sequence[SessionSummary]) -> list[list[Cell]]:
    now = time.time()
    return [
        [
            Cell(session.name, "bold"),
            Cell(session.title),
            Cell(STATES.get(session.state, session.state), STYLES.get(session.state, "")),
            Cell(words.ago(session.last_used, now)),
            Cell(f"{session.tokens:,}"),
            Cell(f"{session.hit_rate:.0%}"),
        ]
        for session in sessions
    ]


def _status(health: Health) -> str:
    progress = health.loading_progress
    share = f" {progress:.0%}" if health.status == "loading" and progress is not None else ""
    detail = f": {health.detail}" if health.detail else ""
    return f"{health.status}{share}{detail}"


def _share(used: int, budget: int) -> str:
    if not budget:
        return "none"
    return f"{_bar(used, budget)}  {words.size(used)} of {words.size(budget)}"


def _bar(used: int, whole: int) -> str:
    full = round(BAR * min(used / whole, 1.0)) if whole else 0
    return f"[{'#' * full}{'.' * (BAR - full)}]"
