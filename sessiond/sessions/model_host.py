"""The model in memory, on its way there, or out of it for as long as nobody wants it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace

from sessiond.engine.host_memory import give_back
from sessiond.errors import EngineError, SessiondError, Unavailable
from sessiond.sessions.calm import RARE_S, Calm
from sessiond.sessions.health import Facts, Loaded
from sessiond.sessions.lander import Machine
from sessiond.sessions.saver import Flushed
from sessiond.sessions.shelf import Shelf
from sessiond.sessions.text import Served
from sessiond.sessions.turn import Status

logger = logging.getLogger(__name__)
_LOOK_S = 1.0
_LEAST_S = 0.01


class ModelHost:
    """Event loop only. `progress` of loading is 0.0 to 1.0, None where it is not known.

    `facts` and `shelf` are there from the first load on, `loaded` only while the model is.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[Loaded]],
        on_loaded: Callable[[Loaded], None],
        let_go: Callable[[Machine], Awaitable[Flushed]],
        draining: asyncio.Event,
        load_wait: float,
    ) -> None:
        """`load` is called again after each unloading, and gives the same store then. `let_go`
        saves and frees everything but the store. `load_wait` seconds at most a request waits.
        """
        self.calm = Calm()
        self.progress: float | None = None
        self.loaded: Loaded | None = None
        self.facts: Facts | None = None
        self.shelf: Shelf | None = None
        self.failure = ""
        self._load = load
        self._on_loaded = on_loaded
        self._let_go = let_go
        self._draining = draining
        self.load_wait = load_wait
        self._loading: asyncio.Task[None] | None = None
        self._unloading: asyncio.Task[None] | None = None
        self._uses = 0
        self._last_used = time.monotonic()

    def start(self) -> asyncio.Task[None]:
        """Begin to load."""
        self.progress, self.failure = None, ""
        self._loading = asyncio.create_task(self._load_model())
        self._loading.add_done_callback(_heard)
        return self._loading

    async def wait(self) -> None:
        """Until the model is loaded. Raises what loading raised."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    async def settle(self) -> None:
        """Until nothing is being loaded or unloaded any more, whatever came of it."""
        for task in (self._unloading, self._loading):
            if task is not None:
                await asyncio.wait({task})

    async def ready(self) -> None:
        """The model is loaded, if need be again.

        Raises Unavailable: loading failed or takes too long, or the daemon is stopping.
        """
        self.refuse_if_draining()
        if self.loaded is not None:
            return
        loading = self._woken()
        try:
            async with asyncio.timeout(self.load_wait):
                await self._ended_or_draining(loading)
        except TimeoutError as error:
            raise _still_loading() from error
        self.refuse_if_draining()
        if self.loaded is None:
            raise self._failed()

    async def served(self) -> Served:
        """Of the model that was loaded last; waits for it at the start, and raises as `ready`."""
        if self.facts is None:
            await self.ready()
        if self.facts is None:
            raise _still_loading()
        return self.facts.served

    @property
    def known(self) -> Shelf:
        """Raises Unavailable until there is one."""
        if self.shelf is None:
            raise _still_loading()
        return self.shelf

    @property
    def present(self) -> Loaded:
        """Raises Unavailable while there is none."""
        if self.loaded is None:
            raise _still_loading()
        return self.loaded

    @property
    def machine(self) -> Machine | None:
        return self.loaded.machine if self.loaded else None

    @property
    def status(self) -> Status:
        if self.loaded is not None:
            return "ok"
        if self._loading is None or not self._loading.done():
            return "loading"
        return "unloaded" if self.shelf is not None else "failed"

    def refuse_if_draining(self) -> None:
        """Raises Unavailable."""
        if self._draining.is_set():
            raise Unavailable("sessiond is stopping.", hint="Try again in a moment.")

    def refuse_if_failed(self) -> None:
        """Raises Unavailable: the model never was there."""
        if self.status == "failed":
            raise self._failed()

    # --- for as long as nobody wants it

    @contextmanager
    def using(self) -> Iterator[None]:
        """The model is not unloaded inside."""
        self._uses += 1
        self.calm.stir()
        try:
            yield
        finally:
            self._uses -= 1
            self.used()

    def used(self) -> None:
        self._last_used = time.monotonic()
        self.calm.stir()

    def idle_s(self, busy: Callable[[], bool]) -> float:
        """Seconds since the model was used last, 0.0 while it is, or while there is none."""
        if self.loaded is None or self._uses or busy():
            return 0.0
        return time.monotonic() - self._last_used

    async def unload_when_idle(self, limit: Callable[[], float], busy: Callable[[], bool]) -> None:
        """Once nothing has used the model for `limit` seconds, 0 for never."""
        while True:
            after, idle = limit(), self.idle_s(busy)
            if after and idle >= after and not self._draining.is_set():
                logger.info("Nothing has used the model for %.0f s: it leaves memory.", after)
                self.unload()
                return
            left = max(after - idle, _LEAST_S) if after else RARE_S
            await self.calm.pause(min(_LOOK_S, left), rare=left)

    def unload(self) -> None:
        """Begin to save everything and to free the model. Nothing may be using it.

        Whoever wants it from now on waits until it is loaded again.
        """
        machine = self.present.machine
        self.loaded = None
        if self.shelf is not None:
            self.shelf = replace(self.shelf, engine=None)
        self._unloading = asyncio.create_task(self._unload(machine))

    async def unloaded(self) -> None:
        """Until an unloading that is under way has ended."""
        if self._unloading is not None:
            await asyncio.wait({self._unloading})

    # --- inside

    async def _unload(self, machine: Machine) -> None:
        try:
            flushed = await self._let_go(machine)
            if flushed.lost:
                logger.warning(
                    "State could not be saved when the model left memory, and will be evaluated"
                    " again. Sessions: %d.",
                    flushed.lost,
                )
        except SessiondError as error:
            logger.error("Not all state was saved when the model left memory: %s", error)
        except Exception:
            logger.exception("The model did not leave memory as it should have.")
        del machine
        await asyncio.to_thread(give_back)

    def _woken(self) -> asyncio.Task[None]:
        loading = self._loading
        if loading is None or (loading.done() and self.shelf is not None):
            return self.start()
        return loading

    async def _load_model(self) -> None:
        await self.unloaded()
        if self.shelf is not None:
            self.refuse_if_draining()
        try:
            loaded = await self._load()
        except SessiondError as error:
            self._fail(str(error))
            raise
        except Exception as error:
            self._fail(repr(error))
            raise EngineError(f"The model could not be loaded: {error!r}.") from error
        self.loaded, self.facts, self.shelf = loaded, loaded.facts, loaded.shelf
        self.used()
        self._on_loaded(loaded)

    def _fail(self, why: str) -> None:
        self.failure = why
        if self.shelf is not None:
            logger.error("The model could not be loaded again: %s", why)

    def _failed(self) -> Unavailable:
        return Unavailable(f"The model could not be loaded: {self.failure}")

    async def _ended_or_draining(self, loading: asyncio.Task[None]) -> None:
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({loading, draining}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()


async def let_go(
    machine: Machine,
    end_chores: Callable[[], Awaitable[None]],
    step: Callable[[], None] = lambda: None,
) -> Flushed:
    """Everything of a machine is saved and then freed, but its store. `step` is called for
    what gets done. Whatever fails, everything is freed. Raises EngineError.
    """
    async with AsyncExitStack() as stack:
        stack.callback(machine.saver.close)
        stack.callback(machine.checkpoints.close)
        stack.push_async_callback(machine.engine.stop)
        await end_chores()
        return await machine.saver.save_for_stop(step)
    raise AssertionError("nothing suppresses errors here")


def _heard(loading: asyncio.Task[None]) -> None:
    """Whoever waits is told by `failure`; it may be that nobody does."""
    if not loading.cancelled():
        loading.exception()


def _still_loading() -> Unavailable:
    return Unavailable("The model is still loading.", hint="Try again later.")
