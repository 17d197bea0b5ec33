"""Any order of calls keeps the ring's books right, its budget kept and its payloads whole."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessiond.engine.memory import Tokens
from sessiond.errors import StateMissing
from sessiond.store.chain import root_key
from sessiond.store.loss import Rank
from sessiond.store.ring import Ring
from sessiond.store.ring_entry import Place, Refusal, Reservation
from sessiond.store.slabs import PAGE
from tests.store.rings import bytes_of
from tests.store.samples import line

BUDGET = 10 * PAGE
TEXTS = [line(600, seed) for seed in range(3)]
texts = st.integers(0, len(TEXTS) - 1)
positions = st.sampled_from((1, 40, 256, 257, 300, 512, 600))
lines = st.sampled_from(("a", "b"))


class RingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(BUDGET)
        self.pending: list[tuple[Reservation, set[str]]] = []
        self.doomed: list[Reservation] = []
        self.leases: list[tuple[str, memoryview, bytes, ExitStack]] = []
        self.complete: dict[str, int] = {}

    @rule(
        text=texts,
        position=positions,
        line=lines,
        rank=st.sampled_from(Rank),
        size=st.integers(1, 4 * PAGE),
    )
    def reserve(self, text: int, position: int, line: str, rank: Rank, size: int) -> None:
        tokens = TEXTS[text][:position]
        before = self.ring.stats().entries
        got = self.ring.reserve("", line, tokens, rank, size)
        if isinstance(got, Refusal):
            assert got in (Refusal.PRESENT, Refusal.FULL)
            assert self.ring.stats().entries == before
            if got is Refusal.PRESENT:
                self._share(tokens, line)
            return
        got.buffer[:] = bytes_of(got.key, size)
        self.pending.append((got, {line}))

    def _share(self, tokens: Tokens, line: str) -> None:
        key = Place.at_end(root_key("", ""), tokens).key
        for reservation, of in self.pending:
            if reservation.key == key and reservation not in self.doomed:
                of.add(line)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        reservation, _ = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        size = len(reservation.buffer)
        visible = self.ring.publish(reservation, size)
        assert visible == (reservation not in self.doomed)
        if visible:
            self.complete[reservation.key] = size

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        reservation, _ = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.ring.withdraw(reservation)

    @precondition(lambda self: self.complete)
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.complete)))
        stack = ExitStack()
        try:
            view = stack.enter_context(self.ring.lease(key))
        except StateMissing:
            assert key not in {entry.key for entry in self.ring.entries()}
            return
        assert bytes(view) == bytes_of(key, self.complete[key])
        self.leases.append((key, view, bytes(view), stack))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        *_, stack = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        stack.close()

    @rule(line=lines)
    def drop_line(self, line: str) -> None:
        self.ring.drop_line(lambda name: name == line)
        for reservation, of in self.pending:
            of.discard(line)
            if not of:
                self.doomed.append(reservation)
        assert not [entry for entry in self.ring.entries() if entry.line == line]

    @precondition(lambda self: self.complete)
    @rule(data=st.data())
    def demote(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.complete)), max_size=4))
        self.ring.demote(keys)
        ranks = {entry.key: entry.rank for entry in self.ring.entries()}
        assert all(ranks.get(key) not in (Rank.END, Rank.LAST_BOUNDARY) for key in keys)

    @rule(text=texts, length=positions)
    def find(self, text: int, length: int) -> None:
        tokens = TEXTS[text][:length]
        found = self.ring.find("", tokens)
        assert [e.position for e in found] == sorted(e.position for e in found)
        for entry in found:
            assert self.complete[entry.key] == entry.bytes
            other = Ring(PAGE).reserve("", "a", tokens[: entry.position], Rank.STEP, 1)
            assert isinstance(other, Reservation) and other.key == entry.key

    @invariant()
    def adds_up(self) -> None:
        self.ring.check_integrity(deep=True)
        assert self.ring.stats().bytes <= BUDGET

    @invariant()
    def what_is_read_stays(self) -> None:
        for _, view, expected, _ in self.leases:
            assert bytes(view) == expected

    def teardown(self) -> None:
        for *_, stack in self.leases:
            stack.close()
        for reservation, _ in self.pending:
            self.ring.withdraw(reservation)
        self.ring.drop_line(lambda name: True)
        self.ring.check_integrity()
        assert self.ring.stats().entries == 0


TestRing = RingMachine.TestCase
TestRing.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
