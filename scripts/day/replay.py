"""Plays a trace to a server, and says of each event what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scripts.daemon import DaemonFailed
from scripts.day.agent import Agent, Request
from scripts.day.bound import Bounds, Count
from scripts.day.client import Refused, Reply, ask
from scripts.day.servers import Server
from scripts.day.trace import Event, Restart, Trace, TraceError, Turn

Wait = Callable[[float], None]
"""What a pause of so many seconds is."""
SLACK = 1.1
"""The evaluated tokens of an event are at most so many times its bound."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one event. `lower`: the lower bound; `stated`: the bound that the trace states.

    `written` are bytes since the event before, those of a state that is saved late too. `called`:
    the reply had to be a call.
    """

    event: str
    session: str
    bound: str
    sent: int
    drawn: int
    evaluated: int | None
    lower: int
    stated: int
    ttft_ms: float
    total_ms: float
    written: int | None
    resident: int | None
    source: str
    miss: str
    finish_reason: str
    after_restart: bool
    called: bool = False

    @property
    def holds(self) -> bool:
        return self.evaluated is None or self.evaluated <= SLACK * self.stated


@dataclass(frozen=True, slots=True)
class Day:
    """A trace that was played once. `restarts`: seconds from each start to its being ready."""

    server: str
    costs: tuple[Cost, ...]
    restarts: tuple[float, ...]
    left_out: int
    written: int | None

    @property
    def evaluated(self) -> int | None:
        """None where the server does not tell."""
        found = [cost.evaluated for cost in self.costs]
        return None if None in found else sum(number or 0 for number in found)

    @property
    def lower(self) -> int:
        return sum(cost.lower for cost in self.costs)

    @property
    def sent(self) -> int:
        return sum(cost.sent for cost in self.costs)


@dataclass(frozen=True, slots=True)
class _Heard:
    """An event that was answered, before its bounds are computed."""

    request: Request
    reply: Reply
    group: int
    written: int | None
    resident: int | None
    after_restart: bool


class _Player:
    def __init__(self, trace: Trace, server: Server, scale: float, wait: Wait) -> None:
        self._trace = trace
        self._server = server
        self._wait = wait
        self._agent = Agent(trace.name, scale)
        self._written = 0
        self._restarted = False
        self.heard: list[_Heard] = []
        self.restarts: list[float] = []
        self.left_out = 0

    def play(self) -> None:
        for number, group in enumerate(self._trace.groups):
            turns = [event for event in group if isinstance(event, Turn)]
            if turns:
                self._turns(number, turns)
            else:
                self._other(group[0])

    def _turns(self, number: int, turns: Sequence[Turn]) -> None:
        requests = [self._agent.request(turn) for turn in turns]
        with ThreadPoolExecutor(len(requests)) as pool:
            replies = list(pool.map(self._ask, requests))
        written = self._new_bytes()
        for at, (request, reply) in enumerate(zip(requests, replies, strict=True)):
            self._agent.hear(request, reply)
            mine = written if not at or written is None else 0
            told = (number, mine, self._server.resident, self._restarted)
            self.heard.append(_Heard(request, reply, *told))
        self._restarted = False

    def _ask(self, request: Request) -> Reply:
        try:
            return ask(self._server.http, request.body, request.turn.session)
        except Refused as error:
            where = f"{self._server.name}, {self._trace.name}, {request.turn.id}"
            raise DaemonFailed(f"{where}: {error}") from error

    def _new_bytes(self) -> int | None:
        now = self._server.written
        if now is None:
            return None
        new, self._written = now - self._written, now
        return new

    def _other(self, event: Event) -> None:
        if isinstance(event, Restart):
            seconds = self._server.restart(event.how)
            if seconds is None:
                self.left_out += 1
                return
            self.restarts.append(seconds)
            self._restarted = True
        elif not isinstance(event, Turn):
            self._wait(event.seconds)


@dataclass(frozen=True, slots=True)
class Played:
    """A day whose bounds have not been computed yet."""

    trace: Trace
    server: str
    heard: tuple[_Heard, ...]
    restarts: tuple[float, ...]
    left_out: int
    written: int | None


def play(trace: Trace, server: Server, scale: float, wait: Wait = time.sleep) -> Played:
    """From its first start to its end. Raises DaemonFailed and TraceError."""
    player = _Player(trace, server, scale, wait)
    try:
        server.start()
        player.play()
        server.close()
    except TraceError as error:
        raise DaemonFailed(f"{trace.name}: {error}") from error
    finally:
        server.kill()
    restarts = tuple(player.restarts)
    told = (player.left_out, server.written)
    return Played(trace, server.name, tuple(player.heard), restarts, *told)


def judged(played: Played, count: Count) -> Day:
    """With the bounds: what runs beside one another knows nothing of each other."""
    bounds = Bounds(count)
    costs: list[Cost] = []
    for group in _groups(played.heard):
        costs += [_cost(one, bounds) for one in group]
        for one in group:
            drops = one.request.turn.reasoning == "drop"
            bounds.learn(one.request, one.reply.kept(drops=drops))
    return Day(played.server, tuple(costs), played.restarts, played.left_out, played.written)


def _groups(heard: Iterable[_Heard]) -> Iterator[list[_Heard]]:
    group: list[_Heard] = []
    for one in heard:
        if group and one.group != group[0].group:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _cost(one: _Heard, bounds: Bounds) -> Cost:
    limits, reply, turn = bounds.of(one.request), one.reply, one.request.turn
    return Cost(
        event=turn.id,
        session=turn.session or "",
        bound=turn.bound,
        sent=reply.sent,
        drawn=reply.drawn,
        evaluated=reply.evaluated,
        lower=limits.lower,
        stated=limits.stated,
        ttft_ms=reply.ttft_ms,
        total_ms=reply.total_ms,
        written=one.written,
        resident=one.resident,
        source=reply.source,
        miss=reply.miss,
        finish_reason=reply.finish_reason,
        after_restart=one.after_restart,
        called=turn.calls,
    )
