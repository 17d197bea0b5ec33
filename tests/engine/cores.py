"""An EngineCore on a fake, driven step by step, with the events of its runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sessiond.engine.active import ActiveRun
from sessiond.engine.context import Context
from sessiond.engine.core import SPARES, EngineCore
from sessiond.engine.events import Delta, Ended, Event, Progress, Starved
from sessiond.engine.fake import FakeContext, FakeModel
from sessiond.engine.memory import Memory, MemoryKind, Tokens, as_tokens
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.errors import SessiondError

ATTENTION = Memory(MemoryKind.ATTENTION)
HYBRID = Memory(MemoryKind.HYBRID)
LIMIT = 1 << 16


def prompt(length: int, start: int = 0) -> Tokens:
    return as_tokens([97 + (start + at) % 26 for at in range(length)])


def run_of(
    seq: int,
    tokens: Tokens,
    *,
    start: int = 0,
    limit: int = LIMIT,
    max_tokens: int | None = 5,
    stop: tuple[str, ...] = (),
    ignore_eos: bool = False,
    **more: Any,
) -> Run:
    ending = Ending(max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos)
    return Run(seq, tokens, start, limit, Sampling(temperature=0), ending, **more)


class ScriptedContext:
    """A fake context that keeps what it was asked to decode, and can be told to fail."""

    def __init__(self, context: FakeContext) -> None:
        self._context = context
        self.chunks: list[tuple[int, int, int]] = []
        self.batches: list[list[int]] = []
        self.order: list[str] = []
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode(self, tokens: Tokens, start: int, seq: int, *, logits: bool) -> None:
        """Chunks are (sequence, start, stop)."""
        self._fail()
        self._context.decode(tokens, start, seq, logits=logits)
        self.order.append("chunk")
        self.chunks.append((seq, start, start + len(tokens)))

    def decode_rows(self, rows: Any) -> None:
        self._fail()
        self._context.decode_rows(rows)
        self.order.append("rows")
        self.batches.append([row.seq for row in rows])

    def synchronize(self) -> None:
        self.order.append("wait")

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class Desk:
    """A core with its model and context; `start` returns the run and the list of its events."""

    def __init__(
        self,
        memory: Memory = ATTENTION,
        *,
        lines: int = 3,
        n_ctx: int = 1 << 12,
        n_batch: int = 16,
        wrap: Callable[[Any], Context] | None = None,
        **model: Any,
    ) -> None:
        self.model = FakeModel(memory, **model)
        fake = FakeContext(self.model, n_ctx=n_ctx, n_seq_max=lines + SPARES, n_batch=n_batch)
        self.fake = fake
        self.context = ScriptedContext(fake)
        self.core = EngineCore(self.model, self.context)  # type: ignore[arg-type]

    def start(self, run: Run) -> tuple[ActiveRun, list[Event | SessiondError]]:
        events: list[Event | SessiondError] = []
        return self.core.start(run, events.append), events

    def finish(self) -> None:
        """Step until nothing is left to do."""
        while self.core.busy:
            self.core.step()

    def complete(self, run: Run) -> list[Event | SessiondError]:
        _, events = self.start(run)
        self.finish()
        return events


def ended(events: list[Event | SessiondError]) -> Ended:
    """The last event, which there is exactly one of."""
    (end,) = [event for event in events if isinstance(event, Ended)]
    assert events[-1] is end
    return end


def text_of(events: list[Event | SessiondError]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def tokens_of(events: list[Event | SessiondError]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Delta) for token in event.tokens)


def kinds_of(events: list[Event | SessiondError]) -> str:
    """P for Progress, D for Delta, S for Starved, E for Ended, ! for an error."""
    letters = {Progress: "P", Delta: "D", Starved: "S", Ended: "E"}
    return "".join(letters.get(type(event), "!") for event in events)
