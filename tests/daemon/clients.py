"""Clients that talk until the daemon is gone, and remember what it has acknowledged.

Each has sessions of its own, so that what it knows of them is all there is to know.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from scripts.daemon import events

Messages = list[dict[str, Any]]
Line = tuple[tuple[str, str], ...]
Judge = Callable[[Messages], str]
"""The only right reply to these messages."""
LONGEST = 9
MOST = 4


def line_of(messages: Messages) -> Line:
    return tuple((message["role"], message["content"]) for message in messages)


@dataclass
class Turn:
    """An acknowledged turn: `path` are the numbers from the root to it, `line` all that was said
    up to its reply."""

    path: tuple[int, ...]
    line: Line


@dataclass
class Session:
    """What was acknowledged, by number; the lines of requests that nobody heard the end of."""

    turns: dict[int, Turn] = field(default_factory=dict)
    unheard: list[Line] = field(default_factory=list)
    messages: Messages = field(default_factory=list)
    path: tuple[int, ...] = ()


@dataclass
class Pending:
    """What was asked for and not answered: it may have happened or not."""

    what: str
    name: str
    new: str = ""


class Refused(Exception):
    """The daemon answered what it may not answer here."""


class Client:
    """`run` in a thread of its own, the rest while it does not run."""

    def __init__(self, name: str, url: str, seed: int, *, tokens: int, front: str) -> None:
        self.name = name
        self.sessions: dict[str, Session] = {}
        self.pending: Pending | None = None
        self.acknowledged = 0
        self.ops: Counter[str] = Counter()
        self.failure: Exception | None = None
        self.heard: list[tuple[Messages, str]] = []
        """Requests and their replies since it was last asked."""
        self._url, self._tokens, self._front = url, tokens, front
        self._chance = random.Random(seed)
        self._made = 0

    def run(self, stop: threading.Event) -> None:
        """Until the daemon does not answer any more, or it is told to stop."""
        try:
            with httpx.Client(base_url=self._url, timeout=120, trust_env=False) as http:
                while not stop.is_set():
                    self._one(http)
        except httpx.TransportError:
            pass
        except Exception as error:
            self.failure = error

    def settle(self, there: set[str]) -> None:
        """After a start: what became of the request whose answer never came."""
        pending, self.pending = self.pending, None
        if pending is None or pending.what == "turn":
            return
        if pending.what == "delete" and pending.name not in there:
            del self.sessions[pending.name]
        if pending.what == "rename" and pending.new in there:
            assert pending.name not in there
            self.sessions[pending.new] = self.sessions.pop(pending.name)
        if pending.what == "fork" and pending.new in there:
            self.sessions[pending.new] = self._forked(pending.name)

    def forget_unborn(self) -> None:
        """Sessions whose first turn never came to its end."""
        self.sessions = {name: one for name, one in self.sessions.items() if one.turns}

    def _one(self, http: httpx.Client) -> None:
        names = sorted(self.sessions)
        what = "begin"
        if names:
            wants = ["append", "again", "fork", "delete", "rename", "begin"]
            (what,) = self._chance.choices(wants, [8, 3, 1, 1, 1, 1])
        if what == "begin" or not names:
            name = self._new_name()
            self.sessions[name] = Session()
            self._append(http, name)
            what = "append"
        else:
            name = self._chance.choice(names)
            if len(names) > MOST:
                what = "delete"
            getattr(self, f"_{what}")(http, name)
        self.ops[what] += 1

    def _append(self, http: httpx.Client, name: str) -> None:
        session = self.sessions[name]
        if len(session.messages) > LONGEST:
            session.messages, session.path = [], ()
        before = session.messages or [{"role": "system", "content": f"{self._front} {name}"}]
        said = f"{self.name} says {self._chance.randrange(10_000)}."
        self._turn(http, name, [*before, {"role": "user", "content": said}], session.path)

    def _again(self, http: httpx.Client, name: str) -> None:
        """The last reply anew."""
        session = self.sessions[name]
        if len(session.messages) < 3:
            return self._append(http, name)
        return self._turn(http, name, session.messages[:-1], session.path[:-1])

    def _turn(self, http: httpx.Client, name: str, asked: Messages, path: tuple[int, ...]) -> None:
        session = self.sessions[name]
        session.unheard.append(line_of(asked))
        self.pending = Pending("turn", name)
        stream = self._chance.random() < 0.6
        body = {"messages": asked, "max_tokens": self._tokens, "temperature": 0, "stream": stream}
        route = f"/s/{name}/v1/chat/completions"
        text, report = (_streamed if stream else _whole)(http, route, body)
        self.pending = None
        if report is None:
            raise httpx.RemoteProtocolError("the stream broke off")
        if report["saved"] is not True:
            raise Refused(f"not saved: {report}")
        session.unheard.remove(line_of(asked))
        session.messages = [*asked, {"role": "assistant", "content": text}]
        session.path = (*path, report["turn"])
        session.turns[report["turn"]] = Turn(session.path, line_of(session.messages))
        self.acknowledged += 1
        self.heard.append((asked, text))

    def _fork(self, http: httpx.Client, name: str) -> None:
        if not self.sessions[name].path:
            return
        new, at = self._new_name(), self.sessions[name].path[-1]
        self.pending = Pending("fork", name, new)
        _expect(http.post(f"/v1/sessions/{name}/fork", json={"name": new, "at": at}), 201)
        self.pending = None
        self.sessions[new] = self._forked(name)

    def _delete(self, http: httpx.Client, name: str) -> None:
        self.pending = Pending("delete", name)
        _expect(http.delete(f"/v1/sessions/{name}"), 204)
        self.pending = None
        del self.sessions[name]

    def _rename(self, http: httpx.Client, name: str) -> None:
        new = self._new_name()
        self.pending = Pending("rename", name, new)
        _expect(http.patch(f"/v1/sessions/{name}", json={"name": new}), 200)
        self.pending = None
        self.sessions[new] = self.sessions.pop(name)

    def _forked(self, name: str) -> Session:
        source = self.sessions[name]
        turns = {number: source.turns[number] for number in source.path}
        return Session(turns, [], list(source.messages), source.path)

    def _new_name(self) -> str:
        self._made += 1
        return f"{self.name}-{self._made}"


def _expect(answer: httpx.Response, status: int) -> None:
    if answer.status_code != status:
        raise Refused(f"{answer.request.method} {answer.request.url}: {answer.text}")


def _whole(http: httpx.Client, route: str, body: dict[str, Any]) -> tuple[str, Any]:
    answer = http.post(route, json=body)
    _expect(answer, 200)
    document = answer.json()
    return document["choices"][0]["message"]["content"], document["sessiond"]


def _streamed(http: httpx.Client, route: str, body: dict[str, Any]) -> tuple[str, Any]:
    """The report only where the chunk with the finish_reason came."""
    heard, report = "", None
    with http.stream("POST", route, json=body) as answer:
        if answer.status_code != 200:
            answer.read()
            _expect(answer, 200)
        for event in events(answer.iter_bytes()):
            if "error" in event:
                raise Refused(str(event))
            for choice in event.get("choices", ()):
                heard += choice["delta"].get("content") or ""
            report = event.get("sessiond") or report
    return heard, report


def ledger_lines(state: Path) -> dict[str, dict[int, Turn]]:
    """What a ledger has, read without sessiond: by session and number all that was said.

    Of a copy, so that whoever opens the ledger next has the log to recover.
    """
    with TemporaryDirectory() as folder:
        for name in ("ledger.sqlite", "ledger.sqlite-wal"):
            if (state / name).exists():
                shutil.copy(state / name, Path(folder) / name)
        with closing(sqlite3.connect(Path(folder) / "ledger.sqlite")) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []
            names = [name for (name,) in db.execute("SELECT name FROM session")]
            rows = db.execute(
                "SELECT s.name, t.number, t.parent, t.content, t.reply FROM turn t"
                " JOIN session s ON s.id = t.session_id ORDER BY t.number"
            ).fetchall()
    found: dict[str, dict[int, Turn]] = {name: {} for name in names}
    for name, number, parent, content, reply in rows:
        before = found[name][parent] if parent is not None else Turn((), ())
        said = line_of(json.loads(content)["messages"])
        line = (*before.line, *said, ("assistant", reply))
        found[name][number] = Turn((*before.path, number), line)
    return found


class Crowd:
    """Some clients against one daemon that is killed again and again."""

    def __init__(
        self, url: str, state: Path, count: int, seed: int, *, tokens: int, front: str
    ) -> None:
        self.state = state
        self.clients = [
            Client(f"c{number}", url, 1000 * seed + number, tokens=tokens, front=front)
            for number in range(count)
        ]

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self.clients)

    @property
    def ops(self) -> Counter[str]:
        return sum((client.ops for client in self.clients), Counter())

    def talk(self, until: Callable[[Callable[[], None]], None]) -> None:
        """All at once, until `until` returns; it may end the daemon or let it live. What it is
        given makes all fall silent and waits for that."""
        stop = threading.Event()
        threads = [threading.Thread(target=c.run, args=(stop,)) for c in self.clients]
        for thread in threads:
            thread.start()

        def hush() -> None:
            stop.set()
            for thread in threads:
                thread.join(120)

        try:
            until(hush)
        finally:
            hush()
        for client in self.clients:
            if client.failure is not None:
                raise client.failure

    def heard(self) -> Iterator[tuple[Messages, str]]:
        """Every request that was acknowledged since the last time, and its reply."""
        for client in self.clients:
            yield from client.heard
            client.heard.clear()

    def check_ledger(self) -> int:
        """Everything acknowledged is there as it was said, and nothing that nobody said.

        The number of turns that are there though nobody heard of it.
        """
        there, unheard = ledger_lines(self.state), 0
        for client in self.clients:
            client.settle(set(there))
            for name, session in client.sessions.items():
                unheard += _check(name, session, there.pop(name, {}))
            client.forget_unborn()
        empty = [name for name, turns in there.items() if not turns]
        assert not there.keys() - empty, f"nobody made these: {sorted(there)}"
        return unheard


def _check(name: str, session: Session, there: dict[int, Turn]) -> int:
    for number, turn in session.turns.items():
        assert number in there, f"LOST: turn {number} of {name}"
        assert there[number].line == turn.line, f"CHANGED: turn {number} of {name}"
    more = {number: turn for number, turn in there.items() if number not in session.turns}
    for number, turn in more.items():
        assert turn.line[:-1] in session.unheard, f"NEVER SENT: turn {number} of {name}"
        session.unheard.remove(turn.line[:-1])
    session.turns |= more
    session.unheard.clear()
    return len(more)
