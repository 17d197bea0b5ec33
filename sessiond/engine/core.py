"""The engine's state and its steps: every call on the llama context is made from here.

One step is one token for every run that is generating, then one prefill chunk for one of the others
in turn. While something generates, a chunk is of the size that `pace` says. Decode and prefill are
separate calls: hybrids split mixed batches badly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator

import numpy as np

from sessiond.elapsed import ms_since
from sessiond.engine.active import ActiveRun, Emit
from sessiond.engine.capture import Capture, CaptureCounts
from sessiond.engine.codec import StateCodec
from sessiond.engine.context import BatchRow, Context, Model, Payload, Sampler
from sessiond.engine.events import FinishReason
from sessiond.engine.landing import Landing
from sessiond.engine.logprobs import logprob
from sessiond.engine.masking import ConstrainedSampler, grammars
from sessiond.engine.memory import Tokens, as_tokens, is_prefix
from sessiond.engine.pace import Pace, Slowness
from sessiond.engine.run import Run
from sessiond.engine.sequence import Owner, Sequence, SequenceView, whose
from sessiond.engine.staging import Staging, StagingBuffer
from sessiond.errors import EngineError, InvalidRequest, PoolFull, RestoreRefused, StateMissing
from sessiond.metrics import EVALUATED

FREEZE_SPARES = 2
SPARES = FREEZE_SPARES + 2
"""Sequence ids beside those of the lines: two for freezing, the mover, and one kept empty."""
STEP_BUDGET_MS = 200.0
"""So long a running stream is to wait for its next token while another line's prompt is read."""
_AIM = 0.8
"""Of the budget: how long a step takes depends on what else the machine does."""
_EXPORT_MS = 5.0
_EXPORT_SHARE = 0.05
"""Blocks are exported for so long between two steps, or for this share of the last one: with one
block a step, saving would fall behind a prefill of two blocks a step."""


class EngineCore:
    """Engine thread only, except where a docstring says otherwise."""

    def __init__(
        self,
        model: Model,
        context: Context,
        staging: Staging | None = None,
        step_budget_ms: float = STEP_BUDGET_MS,
    ) -> None:
        lines = context.n_seq_max - SPARES
        self.model = model
        self.context = context
        self.sequences = tuple(Sequence(seq) for seq in range(lines))
        self.codec = StateCodec(
            context, mover=lines + FREEZE_SPARES, empty=lines + FREEZE_SPARES + 1
        )
        self.captures = CaptureCounts()
        self.staging = staging
        self._spares = deque(range(lines, lines + FREEZE_SPARES))
        self._frozen: deque[tuple[int, Tokens, Owner | None, int]] = deque()
        self._drained: list[Capture] = []
        self._active: list[ActiveRun] = []
        self._step_ms = 0.0
        self._step_tokens = 0
        self._budget_ms = step_budget_ms
        self._clears = 0
        self.pace = Pace(context.n_batch)

    @property
    def prefilling(self) -> bool:
        """Whether somebody waits for a first token; any thread."""
        return any(not run.decoding and not run.starved for run in list(self._active))

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return any(not run.starved or run.cancelled for run in self._active)

    @property
    def resident(self) -> int:
        """How many sequences hold something; any thread."""
        return sum(len(sequence) > 0 for sequence in self.sequences)

    def views(self) -> tuple[SequenceView, ...]:
        running = {run.sequence.seq for run in self._active}
        return tuple(self._view(sequence, sequence.seq in running) for sequence in self.sequences)

    def free_cells(self) -> int:
        """An estimate: cells shared by a fork are counted once while its source is there, and
        what running lines still need of theirs is not free.
        """
        used = sum(len(sequence) - sequence.shared for sequence in self.sequences)
        return self.context.n_ctx - used - sum(run.outstanding for run in self._active)

    # --- runs

    def start(self, run: Run, emit: Emit) -> ActiveRun:
        """Raises EngineError unless `run.seq` holds a beginning of the prompt that leaves logits
        to be computed; nothing has changed then.
        """
        sequence = self.sequences[run.seq]
        if not is_prefix(sequence.tokens, run.prompt):
            raise EngineError(f"Sequence {run.seq} does not hold the beginning of the prompt.")
        if len(sequence) == len(run.prompt) and run.ending.max_tokens != 0:
            raise EngineError("There is no token to evaluate, so there are no logits.")
        active = ActiveRun(run, sequence, self.model, emit)
        self._active.append(active)
        return active

    def step(self, decoded: Callable[[], None] = lambda: None) -> None:
        """`decoded` is called between decode and prefill. Raises DecodeFailed; the caller must then
        `fail_all`.
        """
        began = time.monotonic()
        for active in [run for run in self._active if run.cancelled]:
            self._end(active, "cancelled")
        decoding = [run for run in self._active if run.decoding and not run.starved]
        self._decode(decoding)
        decoded()
        waiting = [r for r in self._active if not r.decoding and not r.starved]
        beside_ms = ms_since(began) if decoding else None
        self._step_tokens = self._prefill(waiting[0], beside_ms) if waiting else 0
        self._step_ms = ms_since(began)

    def go_on(self, active: ActiveRun) -> None:
        """Let a starved run try again."""
        active.starved = False

    def suspend(self, active: ActiveRun) -> bool:
        """Take a run out; its sequence stays as it is, and it can be resumed in any.

        False if it was not under way: it has ended or failed meanwhile.
        """
        if active not in self._active:
            return False
        self._active.remove(active)
        return True

    def resume(self, active: ActiveRun, seq: int) -> None:
        """Let a suspended run go on in `seq`. Raises EngineError unless that holds a beginning of
        its line that leaves a token to evaluate; nothing has changed then.
        """
        sequence, known = self.sequences[seq], active.known()
        if not is_prefix(sequence.tokens, known):
            raise EngineError(f"Sequence {seq} does not hold the beginning of the line.")
        if active.pending is None and len(sequence) == len(known):
            raise EngineError("There is no token to evaluate, so there are no logits.")
        active.move_to(sequence)
        self._active.append(active)

    def finish(self, active: ActiveRun, reason: FinishReason) -> None:
        """End a run that is under way with what it has."""
        if active in self._active:
            self._end(active, reason)

    def cancel_all(self) -> None:
        for active in list(self._active):
            self._end(active, "cancelled")

    def fail_all(self) -> list[ActiveRun]:
        """After a failed decode: forget every sequence and return the runs that were under way.

        They can be resumed, else they must be closed.
        """
        failed, self._active = self._active, []
        self._clears += 1
        self.context.clear()
        for capture in self._drained:
            capture.release()
        self._drained.clear()
        while self._frozen:
            self._spares.append(self._frozen.popleft()[0])
        for sequence in self.sequences:
            sequence.replace(as_tokens([]))
        return failed

    # --- state

    def restore(self, landing: Landing, tokens: Tokens, payloads: Iterator[Payload]) -> None:
        """As `restoring`, at once."""
        for _ in self.restoring(landing, tokens, payloads):
            pass

    def restoring(
        self, landing: Landing, tokens: Tokens, payloads: Iterator[Payload]
    ) -> Generator[None, None, None]:
        """Execute a landing: afterwards `landing.seq` holds tokens[: landing.position].

        Steps may be made where it yields; until the end the sequence counts as empty.
        Raises StateMissing if a failed decode took the cells that it stands on, RestoreRefused,
        or what `payloads` raises; the sequence is then empty.
        """
        sequence, founded = self.sequences[landing.seq], self._founded(landing, tokens)
        source, shared = landing.source, landing.keep
        in_place = source == landing.seq
        if in_place:
            source, shared = sequence.shares_with, min(sequence.shared, landing.keep)
        sequence.replace(as_tokens([]))
        clears = self._clears
        try:
            if not founded:
                raise StateMissing("The cells that were to be kept are gone.")
            for _ in self._fetch(landing, payloads):
                yield
                if self._clears != clears:
                    raise StateMissing("The context was cleared in the middle of a restore.")
        except BaseException:
            self.drop(landing.seq)
            raise
        sequence.replace(tokens[: landing.position], landing.owner)
        if source is not None:
            sequence.shares_with, sequence.shared = source, shared
        self._unshare(landing.seq, landing.keep if in_place else 0)

    def drop(self, seq: int) -> None:
        self.context.seq_rm(seq, -1, -1)
        self.sequences[seq].replace(as_tokens([]))
        self._unshare(seq, 0)

    def export_block(self, seq: int, epoch: int, start: int, stop: int) -> Payload | None:
        """None if the sequence was changed before its end since its view was taken."""
        sequence = self.sequences[seq]
        if sequence.epoch != epoch or len(sequence) < stop:
            return None
        return self.codec.export_block(seq, start, stop)

    def export_blocks(
        self, seq: int, epoch: int, spans: Iterable[tuple[int, int]]
    ) -> list[Payload] | None:
        """The first blocks of `spans`, more than the last step has added, and as many more as take
        little time beside a step.
        """
        began, payloads, exported = time.monotonic(), list[Payload](), 0
        budget = max(_EXPORT_MS, _EXPORT_SHARE * self._step_ms if self.busy else 0.0)
        for start, stop in spans:
            payload = self.export_block(seq, epoch, start, stop)
            if payload is None:
                return None
            payloads.append(payload)
            exported += stop - start
            late = ms_since(began) >= budget
            if late and exported > self._step_tokens:
                break
        return payloads

    def export_snapshot(self, seq: int) -> Capture:
        sequence = self.sequences[seq]
        return Capture(sequence.tokens, self.codec.export_snapshot(seq), sequence.owner)

    def export_whole(self, seq: int) -> Capture:
        sequence = self.sequences[seq]
        return Capture(sequence.tokens, self.codec.export_whole(seq), sequence.owner)

    def drain(self) -> list[Capture]:
        """All snapshots captured since the last call. Waits for queued computation.

        Whoever gets them must release them.
        """
        while self._frozen:
            self._drain_oldest()
        return self.take_drained()

    def take_drained(self) -> list[Capture]:
        """As `drain`, but only those that are read out already; takes no time."""
        drained, self._drained = self._drained, []
        return drained

    @property
    def captured(self) -> list[tuple[Tokens, Owner | None]]:
        """Of all captures that were not taken yet; any thread."""
        frozen = [(tokens, owner) for _, tokens, owner, _ in list(self._frozen)]
        return [*frozen, *((capture.tokens, capture.owner) for capture in list(self._drained))]

    @property
    def drained(self) -> int:
        """How many captures wait to be taken; any thread."""
        return len(self._drained)

    # --- inside

    def _view(self, sequence: Sequence, running: bool) -> SequenceView:
        memory = self.context.memory
        window = memory.n_swa and not memory.recurrent and len(sequence)
        return SequenceView(
            seq=sequence.seq,
            tokens=sequence.tokens,
            epoch=sequence.epoch,
            window_start=self.context.pos_min(sequence.seq) if window else 0,
            running=running,
            last_used=sequence.last_used,
            owner=sequence.owner,
        )

    def _unshare(self, seq: int, kept: int) -> None:
        """Of the cells of `seq` only [0, kept) are still there for its forks to share."""
        for other in self.sequences:
            if other.shares_with == seq:
                other.shared = min(other.shared, kept)

    def _founded(self, landing: Landing, tokens: Tokens) -> bool:
        """Whether its source still holds what it is to give, and may give it."""
        if landing.source is None:
            return True
        source = self.sequences[landing.source]
        held, own = source.tokens[: landing.keep], whose(source.owner) == whose(landing.owner)
        return own and np.array_equal(held, tokens[: landing.keep])

    def _fetch(self, landing: Landing, payloads: Iterator[Payload]) -> Iterator[None]:
        """Yields between two blocks."""
        codec, seq = self.codec, landing.seq
        if landing.whole:
            codec.import_whole(_next(payloads), seq, landing.position)
            return
        if landing.source is None:
            self.context.seq_rm(seq, -1, -1)
        elif landing.blocks or landing.snapshot:
            codec.keep_cells(landing.source, seq, landing.keep)
        elif landing.source == seq:
            codec.rewind(seq, landing.position)
        else:
            codec.fork(landing.source, seq, landing.position)
        for block in landing.blocks:
            codec.import_block(_next(payloads), seq, upto=block.upto)
            yield
        if landing.snapshot:
            codec.import_snapshot(_next(payloads), seq, landing.position)
        elif not codec.stands_at(seq, landing.position):
            codec.rewind(seq, landing.position)

    def _decode(self, runs: list[ActiveRun]) -> None:
        """Where the cells do not suffice, the runs that began last starve, and no others."""
        began = time.monotonic()
        fed = sorted(runs, key=lambda run: run.started)
        while fed and not self._decoded(fed):
            fed.pop().starve()
        EVALUATED.labels("decode").inc(len(fed))
        for row, run in enumerate(fed):
            run.sequence.append(as_tokens([run.pending]))
            self._sample(run, row, began)

    def _decoded(self, runs: list[ActiveRun]) -> bool:
        rows = [
            BatchRow(run.pending, len(run.sequence), run.sequence.seq, True)
            for run in runs
            if run.pending is not None
        ]
        try:
            self.context.decode_rows(rows)
        except PoolFull:
            return False
        return True

    def _chunk(self, slowness: Slowness, beside_ms: float | None) -> int:
        """The most tokens of one chunk, in a step whose decode took so long; None: it had none."""
        if beside_ms is None:
            return self.context.n_batch
        aim = self._budget_ms * _AIM
        return self.pace.chunk(max(aim - beside_ms, aim / 2), slowness)

    def _prefill(self, active: ActiveRun, beside_ms: float | None) -> int:
        """Evaluate one chunk, and let others come first next time. The tokens evaluated."""
        began = time.monotonic()
        self._active.remove(active)
        self._active.append(active)
        run, line = active.run, active.line
        start, boundary = active.next_chunk
        stop = min(boundary, start + self._chunk(active.slowness, beside_ms))
        last = stop == len(line) and active.pending is None
        try:
            self._evaluate(active, start, stop, last=last, timed=last or beside_ms is not None)
        except PoolFull:
            active.starve()
            return 0
        active.sequence.append(line[start:stop])
        EVALUATED.labels("prefill").inc(stop - start)
        if stop in run.captures:
            self._capture(active.sequence, run.ranks.get(stop, 0))
        if last and run.ending.max_tokens != 0:
            self._sample(active, -1, began)
            return stop - start
        active.spent(began)
        if last:
            self._end(active, "length")
        elif active.pending is None:
            active.report_progress()
        return stop - start

    def _evaluate(
        self, active: ActiveRun, start: int, stop: int, *, last: bool, timed: bool
    ) -> None:
        """`timed` waits for it, and before it for what was asked for until then.

        Raises PoolFull or DecodeFailed.
        """
        if stop == start:
            return
        if timed:
            self.context.synchronize()
        began = time.monotonic()
        self.context.decode(active.line[start:stop], start, active.sequence.seq, logits=last)
        if timed:
            self.context.synchronize()
            took = ms_since(began)
            active.slowness = self.pace.measured(stop - start, took, active.slowness)

    def _sample(self, active: ActiveRun, row: int, began: float) -> None:
        """`began`: monotonic seconds at which the decode was started that `row` belongs to."""
        run = active.run
        try:
            token = self._sampler(active).sample(row)
        except InvalidRequest as error:
            self._active.remove(active)
            active.close()
            active.fail(error)
            return
        detail = None
        if run.logprobs is not None:
            detail = logprob(self.context.logits(row), token, run.logprobs, self.model)
        active.spent(began)
        reason = active.take(token, detail)
        if reason:
            self._end(active, reason)

    def _sampler(self, active: ActiveRun) -> Sampler:
        """Raises InvalidRequest if a constraint cannot be followed."""
        if active.sampler is None:
            run = active.run
            matcher = grammars(self.model).matcher(run.constraint) if run.constraint else None
            active.sampler = self.context.sampler(run.sampling, run.prompt)
            if matcher:
                active.sampler = ConstrainedSampler(active.sampler, matcher, self.context.logits)
        return active.sampler

    def _end(self, active: ActiveRun, reason: FinishReason) -> None:
        self._active.remove(active)
        active.close()
        if active.run.capture_end and len(active.sequence):
            complete = len(active.sequence) >= len(active.run.prompt)
            self._capture(active.sequence, active.run.end_rank if complete else 0)
        active.end(reason)

    def _capture(self, sequence: Sequence, rank: int = 0) -> None:
        if self._spares:
            self.captures.frozen += 1
        else:
            self._drain_oldest()
            self.captures.direct += 1
        began = time.monotonic()
        spare = self._spares.popleft()
        self.codec.freeze(sequence.seq, spare, len(sequence))
        self._frozen.append((spare, sequence.tokens, sequence.owner, rank))
        self.captures.engine_ms += ms_since(began)

    def _drain_oldest(self) -> None:
        began = time.monotonic()
        spare, tokens, owner, rank = self._frozen.popleft()
        buffer = self._take_staging(self.codec.snapshot_size(spare))
        try:
            payload = self.codec.drain(spare, buffer.view if buffer else None)
            self._drained.append(Capture(tokens, payload, owner, rank, buffer))
        finally:
            self._spares.append(spare)
        elapsed = ms_since(began)
        self.captures.engine_ms += elapsed
        self.captures.drain_ms += elapsed

    def _take_staging(self, size: int) -> StagingBuffer | None:
        if self.staging is None:
            return None
        if size > self.staging.capacity:
            self.staging.resize(size)
        buffer = self.staging.take(size)
        self.captures.pageable += buffer is None
        return buffer


def _next(payloads: Iterator[Payload]) -> Payload:
    payload = next(payloads, None)
    if payload is None:
        raise RestoreRefused("A payload is missing.")
    return payload
