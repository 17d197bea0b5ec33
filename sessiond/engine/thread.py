"""The one thread that touches the llama context: commands in by a queue, events out to asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from math import inf
from typing import TypeVar

from sessiond.engine.active import ActiveRun
from sessiond.engine.capture import Capture
from sessiond.engine.context import Context, Model, Payload
from sessiond.engine.core import STEP_BUDGET_MS, EngineCore
from sessiond.engine.events import Delta, Ended, Event, FinishReason, Progress, Starved
from sessiond.engine.landing import Landing
from sessiond.engine.memory import Tokens
from sessiond.engine.run import Run
from sessiond.engine.sequence import SequenceView
from sessiond.engine.staging import Staging
from sessiond.errors import EngineError, SessiondError

logger = logging.getLogger(__name__)
T = TypeVar("T")
Loader = Callable[[], tuple[Model, Context]]
RESTORE_S = 0.02
"""Of a restore are done at once while lines are running."""
Command = Callable[[], None]
Post = tuple[Callable[..., None], tuple[object, ...]]
Sink = Callable[[Progress | Delta], None]


class Engine:
    """Start it once on a running event loop. Call its methods from there, unless said otherwise."""

    def __init__(
        self,
        load: Loader,
        staging: Callable[[], Staging | None] | None = None,
        step_budget_ms: float = STEP_BUDGET_MS,
    ) -> None:
        """`load` and then `staging` run on the engine thread; loading may take minutes."""
        self._staging = staging
        self._step_budget_ms = step_budget_ms
        self._load = load
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._working_since: float | None = None
        self.beats = 0
        """Micro-batches and commands that have ended. Any thread may read it."""
        self._held: list[Post] | None = None
        self._core: EngineCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    async def start(self) -> None:
        """Returns when the model is loaded. Raises what loading raised."""
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        await self._loaded

    async def stop(self) -> None:
        """End running turns as cancelled and free the context."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    @property
    def core(self) -> EngineCore:
        """For `call`, and for facts that never change. Raises EngineError until loading is done."""
        if self._core is None:
            raise EngineError("The model is not loaded.")
        return self._core

    @property
    def model(self) -> Model:
        return self.core.model

    @property
    def silence(self) -> float:
        """Seconds since the last micro-batch or command ended; 0.0 with nothing to do, infinite for
        a thread that has died. Any thread.
        """
        since = self._working_since
        if self._core is not None and not self._thread.is_alive():
            return 0.0 if self._stopping else inf
        return 0.0 if since is None else time.monotonic() - since

    async def call(self, work: Callable[[EngineCore], T]) -> T:
        """Run `work` on the engine thread between two steps and return what it returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def command() -> None:
            try:
                result = work(self.core)
            except BaseException as error:
                self._post(_fail, future, error)
            else:
                self._post(_resolve, future, result)

        self._submit(command)
        return await future

    async def run(self, run: Run, sink: Sink) -> RunHandle:
        """Begin a run. `sink` is called on the event loop with Progress and Delta, in order."""
        handle = RunHandle(self, sink)

        def begin(core: EngineCore) -> None:
            handle.active = core.start(run, lambda event: self._post(handle.deliver, event))

        try:
            await self.call(begin)
        except asyncio.CancelledError:
            with suppress(EngineError):
                self._submit(handle.cancel)  # `begin` may still be in the queue before it
            raise
        return handle

    async def go_on(self, handle: RunHandle) -> None:
        """Let a starved run try again."""
        await self.call(lambda core: core.go_on(handle.running))

    async def finish(self, handle: RunHandle, reason: FinishReason) -> None:
        """End a run with what it has; `wait` returns it."""
        await self.call(lambda core: core.finish(handle.running, reason))

    async def suspend(self, handle: RunHandle) -> bool:
        """Take a run out of the steps. False if it is not under way any more; `wait` says why."""
        return await self.call(lambda core: core.suspend(handle.running))

    async def known(self, handle: RunHandle) -> tuple[Tokens, bool]:
        """The line of a run that is not under way, and whether its next token is sampled."""
        return await self.call(
            lambda _core: (handle.running.known(), handle.running.pending is not None)
        )

    async def resume(self, handle: RunHandle, seq: int) -> None:
        """Let a suspended or failed run go on in `seq`. Raises EngineError as the core does."""
        await self.call(lambda core: core.resume(handle.running, seq))

    async def close_run(self, handle: RunHandle, reason: FinishReason | None = None) -> None:
        """A suspended or failed run will not go on; with a reason, `wait` returns what it has."""

        def close(_core: EngineCore) -> None:
            handle.running.close()
            if reason is not None:
                handle.running.end(reason)

        await self.call(close)

    async def views(self) -> tuple[SequenceView, ...]:
        return await self.call(lambda core: core.views())

    async def restore(self, landing: Landing, tokens: Tokens, payloads: Iterator[Payload]) -> None:
        """Runs go on meanwhile, with a step after every few blocks."""
        steps: list[Generator[None, None, None]] = []

        def advance(core: EngineCore) -> bool:
            if not steps:
                steps.append(core.restoring(landing, tokens, payloads))
            until = time.monotonic() + RESTORE_S
            for _ in steps[0]:
                if core.busy and time.monotonic() >= until:
                    return True
            return False

        try:
            while await self.call(advance):
                pass
        except asyncio.CancelledError:
            with suppress(EngineError):
                self._submit(lambda: _close(steps))
            raise

    async def drain(self) -> list[Capture]:
        return await self.call(lambda core: core.drain())

    async def take_drained(self) -> list[Capture]:
        return await self.call(lambda core: core.take_drained())

    def nudge(self) -> None:
        """Let the engine thread look at cancelled runs. Any thread."""
        with self._wake:
            self._wake.notify()

    # --- engine thread

    def _submit(self, command: Command) -> None:
        with self._wake:
            if self._stopping:
                raise EngineError("The engine has stopped.")
            self._commands.append(command)
            self._wake.notify()

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        """To the event loop; what a step says of all its lines wakes the loop once."""
        if self._held is not None:
            self._held.append((callback, arguments))
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held:
            self._post(_call_all, held)
        self._held = []

    def _main(self) -> None:
        with ExitStack() as held:
            try:
                self._core = self._made(held)
            except BaseException as error:
                self._post(_fail, self._loaded, error)
                self._abandon()
                return
            self._post(_resolve, self._loaded, None)
            self._serve(self._core)

    def _made(self, held: ExitStack) -> EngineCore:
        """`held` frees what was loaded, whatever comes of the rest."""
        model, context = self._load()
        if close := getattr(model, "close", None):
            held.callback(close)
        held.callback(context.close)
        staging = self._staging() if self._staging else None
        if staging is not None:
            held.callback(staging.close)
        return EngineCore(model, context, staging, self._step_budget_ms)

    def _abandon(self) -> None:
        """Nothing was loaded: what waits and what still comes fails with EngineError."""
        with self._wake:
            self._stopping = True
            waiting, self._commands = self._commands, deque()
        for command in waiting:
            command()

    def _serve(self, core: EngineCore) -> None:
        while True:
            with self._wake:
                while not (self._commands or self._stopping or core.busy):
                    self._working_since = None
                    self._wake.wait()
                self._working_since = time.monotonic()
                command = self._commands.popleft() if self._commands else None
                if self._stopping and command is None:
                    core.cancel_all()
                    return
            if command:
                command()
                self._beat()
            if core.busy:
                self._step(core)
                self._beat()

    def _beat(self) -> None:
        self.beats += 1
        self._working_since = time.monotonic()

    def _step(self, core: EngineCore) -> None:
        self._held = []
        try:
            core.step(self._send_held)
        except Exception as error:
            failure = error if isinstance(error, SessiondError) else EngineError(repr(error))
            logger.error("A decode failed; every line is parked: %s", failure, exc_info=error)
            for active in core.fail_all():
                active.fail(failure)
        self._send_held()
        self._held = None


class RunHandle:
    """A run under way, seen from the event loop."""

    def __init__(self, engine: Engine, sink: Sink) -> None:
        self.active: ActiveRun | None = None
        self._engine = engine
        self._sink = sink
        self._outcomes: asyncio.Queue[Ended | Starved | SessiondError] = asyncio.Queue()

    @property
    def seq(self) -> int:
        """The sequence it is in, or was in last."""
        return self.running.sequence.seq

    @property
    def running(self) -> ActiveRun:
        """For the engine thread. Raises EngineError for a run that never began."""
        if self.active is None:
            raise EngineError("The run has not begun.")
        return self.active

    def deliver(self, event: Event | SessiondError) -> None:
        if isinstance(event, Progress | Delta):
            self._sink(event)
        else:
            self._outcomes.put_nowait(event)

    async def wait(self) -> Ended | Starved:
        """The end of the run, or Starved: then `go_on` or `finish` it and wait again.

        Raises DecodeFailed or another EngineError: the state of every sequence is then gone.
        """
        outcome = await self._outcomes.get()
        if isinstance(outcome, SessiondError):
            raise outcome
        return outcome

    def cancel(self) -> None:
        """End it at the next micro-batch; `wait` then returns Ended("cancelled"). Any thread."""
        if self.active is not None:
            self.active.cancelled = True
            self._engine.nudge()


def _call_all(posts: list[Post]) -> None:
    for callback, arguments in posts:
        try:
            callback(*arguments)
        except Exception:  # of one line; what the others are told goes on
            logger.exception("An event of the engine could not be delivered.")


def _close(steps: list[Generator[None, None, None]]) -> None:
    for each in steps:
        each.close()


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
