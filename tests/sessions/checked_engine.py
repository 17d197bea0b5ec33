"""An engine that compares, at every step, its record of the cells with the cells themselves.

And with what a context of its own would hold that has evaluated the same tokens and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sessiond.engine.active import ActiveRun
from sessiond.engine.capture import Capture
from sessiond.engine.context import Payload
from sessiond.engine.core import EngineCore
from sessiond.engine.fake import _header, _mix, _pack
from sessiond.engine.landing import Landing
from sessiond.engine.memory import Memory, Tokens, as_tokens, common_prefix
from sessiond.engine.run import Run
from sessiond.errors import DecodeFailed, RestoreRefused, StateError

MOST_KEPT = 20


class Isolated:
    """What `tokens` leave behind in a FakeContext that nobody else uses, up to any position."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._tokens = as_tokens([])
        self._values: list[int] = []
        self._states: list[int] = []

    def follow(self, tokens: Tokens) -> Isolated:
        same = common_prefix(self._tokens, tokens)
        del self._values[same:], self._states[same:]
        for at, token in enumerate(tokens[same:].tolist(), same):
            value = _mix(token, at)
            self._values.append(value)
            self._states.append(_mix(value, self._states[-1] if at else 0))
        self._tokens = tokens.copy()
        return self

    def block(self, start: int, stop: int) -> bytes:
        cells = dict(zip(range(start, stop), self._values[start:stop], strict=True))
        empty = _pack({}) * ((self._memory.n_swa > 0) + self._memory.recurrent)
        return _header(self._memory) + _pack(cells) + empty

    def snapshot(self) -> bytes:
        memory, end, tail = self._memory, len(self._tokens), b""
        if memory.n_swa:
            first = memory.window_start(end)
            tail += _pack(dict(enumerate(self._values[first:], first)))
        if memory.recurrent:
            tail += _pack({end - 1: self._states[-1]})
        return _header(memory) + tail

    def fault(self, held: Any, *, frozen: bool = False) -> str:
        """What is wrong with the state of a sequence, or "". A frozen one has no cells to speak of.

        Of a window older cells than it needs may be there; none may be missing or differ.
        """
        memory, end = self._memory, len(self._tokens)
        cells = dict(enumerate(self._values)) if memory.has_blocks else {}
        if frozen:
            cells = {at: value for at, value in cells.items() if at in held.cells}
        if held.cells != cells:
            return f"{len(held.cells)} cells for {len(cells)} tokens"
        needed = set(range(memory.window_start(end), end)) if memory.n_swa else set()
        known = {at: self._values[at] for at in held.window if at < end}
        if held.window != known or not needed <= known.keys():
            return f"window {sorted(held.window)} at {end}"
        state = (end - 1, self._states[-1]) if memory.recurrent and end else None
        return "" if held.state == state else f"state {held.state}, not {state}"


@dataclass
class Findings:
    """What the checked engines of a test found; `faults` must stay empty."""

    faults: list[str] = field(default_factory=list)
    checks: int = 0
    payloads: int = 0
    refusals: int = 0
    failed: int = 0
    most_at_once: int = 0

    def fault(self, text: str) -> None:
        if len(self.faults) < MOST_KEPT:
            self.faults.append(text)


class CheckedCore(EngineCore):
    """On a FakeContext only."""

    def __init__(self, findings: Findings, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._findings = findings
        self._expected = [Isolated(self.context.memory) for _ in range(self.context.n_seq_max)]
        self._bytes = Isolated(self.context.memory)
        self._half: set[int] = set()

    def step(self, decoded: Callable[[], None] = lambda: None) -> None:
        try:
            super().step(decoded)
        except DecodeFailed:
            self._findings.failed += 1
            raise  # nothing is known of the memory until it is cleared
        self._findings.most_at_once = max(self._findings.most_at_once, len(self._active))
        self._check("a step")

    def start(self, run: Run, emit: Any) -> ActiveRun:
        with self._checked("a start"):
            return super().start(run, emit)

    def resume(self, active: ActiveRun, seq: int) -> None:
        with self._checked("a resumption"):
            super().resume(active, seq)

    def restoring(
        self, landing: Landing, tokens: Tokens, payloads: Iterator[Payload]
    ) -> Iterator[None]:
        """While it goes on its sequence is nobody's; afterwards it is restored or empty."""
        landed = 0
        self._half.add(landing.seq)
        try:
            yield from super().restoring(landing, tokens, payloads)
            landed = landing.position
        except (RestoreRefused, StateError):
            self._findings.refusals += 1
            raise
        finally:
            self._half.discard(landing.seq)
            self._check("a restore")
            if len(self.sequences[landing.seq]) != landed:
                self._findings.fault("A restore does not stand where it landed.")

    def drop(self, seq: int) -> None:
        super().drop(seq)
        fault = self._expected[seq].follow(as_tokens([])).fault(self._held(seq))
        if fault:
            self._findings.fault(f"after a drop: {seq}: {fault}")

    def fail_all(self) -> list[ActiveRun]:
        with self._checked("a failed decode"):
            return super().fail_all()

    def export_block(self, seq: int, epoch: int, start: int, stop: int) -> Payload | None:
        with self._checked("an export"):
            payload = super().export_block(seq, epoch, start, stop)
        if payload is not None:
            line = self._bytes.follow(self.sequences[seq].tokens)
            self._compare(bytes(payload), line.block(start, stop), f"block at {start}")
        return payload

    def take_drained(self) -> list[Capture]:
        with self._checked("a drain"):
            captures = super().take_drained()
        for capture in captures:
            expected = self._bytes.follow(capture.tokens).snapshot()
            self._compare(bytes(capture.payload), expected, f"snapshot at {len(capture.tokens)}")
        return captures

    # --- inside

    def _held(self, seq: int) -> Any:
        context: Any = self.context
        return context._sequences[seq]

    @contextmanager
    def _checked(self, what: str) -> Iterator[None]:
        try:
            yield
        finally:
            self._check(what)

    def _check(self, what: str) -> None:
        self._findings.checks += 1
        frozen = {spare: tokens for spare, tokens, *_ in self._frozen}
        for seq, expected in enumerate(self._expected):
            line = self.sequences[seq].tokens if seq < len(self.sequences) else frozen.get(seq)
            tokens = as_tokens([]) if line is None else line
            if seq in self._half and not len(tokens):
                continue
            fault = expected.follow(tokens).fault(self._held(seq), frozen=seq in frozen)
            if fault:
                self._findings.fault(f"after {what}: sequence {seq}: {fault}")
        self._check_runs(what)
        context: Any = self.context
        if context._cells_used() > context.n_ctx:
            self._findings.fault(f"after {what}: {context._cells_used()} cells")

    def _check_runs(self, what: str) -> None:
        places = [run.sequence.seq for run in self._active]
        if len(set(places)) != len(places):
            self._findings.fault(f"after {what}: two runs in one sequence: {places}")
        for run in self._active:
            held, known = run.sequence.tokens, run.known()
            if run.sequence is not self.sequences[run.sequence.seq]:
                self._findings.fault(f"after {what}: a run has a sequence of its own")
            if not np.array_equal(held, known[: len(held)]):
                self._findings.fault(f"after {what}: a run's sequence holds other tokens")

    def _compare(self, payload: bytes, expected: bytes, what: str) -> None:
        self._findings.payloads += 1
        if payload != expected:
            self._findings.fault(f"{what}: {len(payload)} bytes are not those of the control")
