"""A run under way: its phase, its sampler and what it has sampled. Engine thread only."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from sessiond.elapsed import ms_since
from sessiond.engine.context import Model, Sampler
from sessiond.engine.events import Delta, Ended, Event, FinishReason, Logprob, Progress, Starved
from sessiond.engine.memory import Tokens, as_tokens
from sessiond.engine.pace import Slowness
from sessiond.engine.reply import ReplyText
from sessiond.engine.run import Run
from sessiond.engine.sequence import Sequence
from sessiond.errors import SessiondError

RESERVE_TOKENS = 1024
"""Cells kept free for a reply before it starts, at most; more are freed when it needs them."""
Emit = Callable[[Event | SessiondError], None]


class ActiveRun:
    """`cancelled` may be set from any thread; it is looked at between micro-batches.

    `line` is what its sequence must hold before a token can be decoded: the prompt, and after it
    was suspended in its reply all but the last token sampled. `slowness` is what `pace` knows
    of it.
    """

    def __init__(self, run: Run, sequence: Sequence, model: Model, emit: Emit) -> None:
        self.run = run
        self.sequence = sequence
        self.line = run.prompt
        self.cancelled = False
        self.starved = False
        self.pending: int | None = None
        self.sampler: Sampler | None = None
        self.slowness = Slowness()
        self.prefill_ms = 0.0
        self.decode_ms = 0.0
        self._model = model
        self._emit = emit
        self._text = ReplyText(run.ending.stop)
        self._sampled: list[int] = []
        self._started = time.monotonic()

    @property
    def decoding(self) -> bool:
        return self.pending is not None and len(self.sequence) >= len(self.line)

    @property
    def outstanding(self) -> int:
        """Cells that it will need, of those that were kept free for it."""
        wanted = self.run.ending.max_tokens
        reply = RESERVE_TOKENS if wanted is None else min(wanted, RESERVE_TOKENS)
        return max(0, len(self.run.prompt) + reply - len(self.sequence))

    @property
    def started(self) -> float:
        """Monotonic seconds."""
        return self._started

    @property
    def next_chunk(self) -> tuple[int, int]:
        """Positions [start, stop) of the line up to the next boundary or the end."""
        start = len(self.sequence)
        ends = [at for at in self.run.captures if at > start]
        return start, min([*ends, len(self.line)])

    def known(self) -> Tokens:
        """What its line has by now, evaluated or not, without the token to be decoded next."""
        if self.pending is None:
            return self.run.prompt
        return np.concatenate((self.run.prompt, as_tokens(self._sampled[:-1])))

    def move_to(self, sequence: Sequence) -> None:
        """Go on in another sequence, or in the same one after it was filled again."""
        self.sequence = sequence
        self.line = self.known()
        self.starved = False

    def close(self) -> None:
        """It will not go on. A second time does nothing."""
        if self.sampler is not None:
            self.sampler.close()
            self.sampler = None

    def spent(self, began: float) -> None:
        """Count the engine's time since `began` (monotonic seconds)."""
        elapsed = ms_since(began)
        if self.decoding:
            self.decode_ms += elapsed
        else:
            self.prefill_ms += elapsed

    def report_progress(self) -> None:
        run = self.run
        elapsed = ms_since(self._started)
        self._emit(Progress(len(run.prompt), run.start, len(self.sequence), elapsed))

    def starve(self) -> None:
        self.starved = True
        self._emit(Starved())

    def fail(self, error: SessiondError) -> None:
        self._emit(error)

    def take(self, token: int, logprob: Logprob | None) -> FinishReason | None:
        """Accept a sampled token. Returns why the run ends with it, if it does."""
        goes_on = self.run.ending.ignore_eos and self.run.constraint is None
        if self._model.ends_generation(token) and not goes_on:
            return "stop"
        self._sampled.append(token)
        self.pending = token
        piece = self._model.piece(token, special=token in self.run.shown)
        visible = self._text.feed(piece)
        self._emit(Delta(visible, (token,), (logprob,) if logprob else ()))
        if self._text.stopped_by is not None:
            return "stop"
        return "length" if self._is_full() else None

    def end(self, reason: FinishReason) -> None:
        rest = self._text.close()
        if rest:
            self._emit(Delta(rest, ()))
        self._emit(
            Ended(
                reason=reason,
                tokens=tuple(self._sampled),
                text=self._text.text,
                prefilled=max(0, min(len(self.sequence), len(self.run.prompt)) - self.run.start),
                prefill_ms=self.prefill_ms,
                decode_ms=self.decode_ms,
                stopped_by=self._text.stopped_by,
            )
        )

    def _is_full(self) -> bool:
        count, limit = len(self._sampled), self.run.ending.max_tokens
        if limit is not None and count >= limit:
            return True
        return len(self.run.prompt) + count >= self.run.limit
