"""Whatever happens to a daemon and its files, every reply is that of a model without any reuse."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sessiond.store.slabs import PAGE
from tests.rig import Daemon, Rig
from tests.sessions.conftest import MEMORY
from tests.sessions.kinds import KINDS, Messages, chat, rig_of
from tests.sessions.talk import checked

T = TypeVar("T")
FRONTS = ["Be terse. " * 28, "Be kind. " * 3]
WORDS = st.sampled_from(["Why?", "How long does it take to get there?", "No."])
NAMES = st.sampled_from(["one", "two", "three"])
ENDINGS = st.sampled_from([0, 3, 9])


@dataclass
class Session:
    """Every line that the session has, as the messages up to a reply; the last is the current."""

    lines: list[Messages] = field(default_factory=list)
    turns: int = 0


class Daemons(RuleBasedStateMachine):
    """One daemon after another on the same files."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.place = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.sessions: dict[str, Session] = {}
        self.daemon: Daemon | None = None
        self.tampered = False

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @property
    def serving(self) -> Daemon:
        assert self.daemon is not None
        return self.daemon

    @initialize(
        kind=st.sampled_from(KINDS),
        lines=st.sampled_from([1, 2, 4]),
        n_ctx=st.sampled_from([700, 5000]),
        quota=st.sampled_from([20_000, 1 << 30]),
        ring=st.sampled_from([0, 3 * PAGE, 1 << 30]),
        whole=st.sampled_from([False, False, False, True]),
    )
    def begin(self, kind: str, lines: int, n_ctx: int, quota: int, ring: int, whole: bool) -> None:
        self.kind = kind
        self.rig: Rig = rig_of(kind, Path(self.place.name), lines=lines, n_ctx=n_ctx)
        self.rig.quota, self.rig.ring, self.rig.whole = quota, ring, whole
        self.start()

    def start(self) -> None:
        self.daemon = Daemon(self.rig)
        self.do(self.daemon.start())

    # --- what clients do

    @rule(name=NAMES, front=st.sampled_from(FRONTS), words=WORDS, length=ENDINGS)
    def begins_anew(self, name: str, front: str, words: str, length: int) -> None:
        self.ask(name, chat(words, front=front), length)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), words=WORDS, length=ENDINGS)
    def goes_on(self, data: st.DataObject, words: str, length: int) -> None:
        name, line = self.pick(data)
        self.ask(name, [*line, {"role": "user", "content": words}], length)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), length=ENDINGS)
    def asks_again(self, data: st.DataObject, length: int) -> None:
        name, line = self.pick(data)
        self.ask(name, line[:-1], length)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), words=WORDS, length=ENDINGS)
    def edits(self, data: st.DataObject, words: str, length: int) -> None:
        name, line = self.pick(data)
        self.ask(name, [*line[:-2], {"role": "user", "content": words + words}], length)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=NAMES, length=ENDINGS)
    def asks_the_same_elsewhere(self, data: st.DataObject, name: str, length: int) -> None:
        """Another session, or another line of the same one, begins with what a line knows."""
        _, line = self.pick(data)
        self.ask(name, line[:-1], length)

    @rule(name=NAMES)
    def asks_too_much(self, name: str) -> None:
        with pytest.raises(Exception, match="exceeds the available context size"):
            self.do(self.serving.open(name, chat("x" * 6000)))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        name, line = self.pick(data)
        self.do(self.left(name, [*line, {"role": "user", "content": "Never mind."}]))

    # --- what people do

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def parks(self, data: st.DataObject) -> None:
        name, _ = self.pick(data)
        self.do(self.serving.lifecycle.park(name))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def resumes(self, data: st.DataObject) -> None:
        name, _ = self.pick(data)
        report = self.do(self.serving.lifecycle.resume(name))
        assert report.prefilled_tokens <= report.tokens

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def removes(self, data: st.DataObject) -> None:
        name, _ = self.pick(data)
        self.do(self.serving.lifecycle.delete(name))
        del self.sessions[name]

    # --- what happens to the daemon and its files

    @rule()
    def saves(self) -> None:
        self.do(self.serving.machine.saver.save_all())

    @rule(kill=st.booleans())
    def restarts(self, kill: bool) -> None:
        self.do(self.serving.kill() if kill else self.serving.stop())
        self.start()
        self.everything_is_there()

    @rule(data=st.data())
    def flips_a_byte(self, data: st.DataObject) -> None:
        cache = Path(self.place.name) / "cache"
        files = [f for shelf in ("blocks", "snapshots") for f in (cache / shelf).rglob("*")]
        files = sorted(file for file in files if file.is_file())
        if files:
            file = data.draw(st.sampled_from(files))
            raw = bytearray(file.read_bytes())
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1
            file.write_bytes(raw)

    @rule()
    def drops_the_cache(self) -> None:
        self.tampered = True
        shutil.rmtree(Path(self.place.name) / "cache", ignore_errors=True)

    # --- what must be true

    def pick(self, data: st.DataObject) -> tuple[str, Messages]:
        name = data.draw(st.sampled_from(sorted(self.sessions)))
        return name, data.draw(st.sampled_from(self.sessions[name].lines))

    def ask(self, name: str, messages: Messages, length: int) -> None:
        if len(messages) > 12:
            return
        reply = self.do(checked(self.serving, self.kind, name, messages, max_tokens=length + 1))
        session = self.sessions.setdefault(name, Session())
        session.turns += 1
        session.lines.append([*messages, {"role": "assistant", "content": reply.text}])
        assert (reply.report.turn, reply.report.saved) == (session.turns, True)
        assert self.serving.machine.store.usage().bytes <= self.rig.quota

    async def left(self, name: str, messages: Messages) -> None:
        opened = await self.serving.open(name, messages, max_tokens=50)
        await opened.events.aclose()
        while self.serving.lifecycle._turns:
            await asyncio.wait(list(self.serving.lifecycle._turns))
        self.sessions[name].turns = len(await self.serving.lifecycle.turns(name))

    @invariant()
    def the_books_are_right(self) -> None:
        """Of the ring at any moment; of the store unless its files were tampered with."""
        if self.daemon is None:
            return
        machine = self.daemon.machine
        machine.checkpoints._ring.check_integrity(deep=True)
        assert machine.checkpoints.stats.bytes <= self.rig.ring
        assert machine.store.usage().bytes <= self.rig.quota
        if not self.tampered:
            machine.store.check_integrity()

    def everything_is_there(self) -> None:
        listed = self.do(self.serving.lifecycle.summaries())
        assert {summary.name: summary.turns for summary in listed} == {
            name: session.turns for name, session in self.sessions.items()
        }

    def teardown(self) -> None:
        if self.daemon is not None:
            self.everything_is_there()
            self.do(self.daemon.stop())
        self.loop.close()
        self.place.cleanup()


TestDaemons = Daemons.TestCase
TestDaemons.settings = settings(max_examples=30, stateful_step_count=14)
