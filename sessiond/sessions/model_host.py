"""The model in memory, or on its way there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sessiond.errors import EngineError, SessiondError, Unavailable
from sessiond.sessions.health import Loaded
from sessiond.sessions.lander import Machine


class ModelHost:
    """Event loop only. `progress` of loading is 0.0 to 1.0, None where it is not known."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Loaded]],
        on_loaded: Callable[[Loaded], None],
        draining: asyncio.Event,
        load_wait: float,
    ) -> None:
        """`load_wait` seconds at most a request waits for the model."""
        self.progress: float | None = None
        self.loaded: Loaded | None = None
        self.failure = ""
        self._load = load
        self._on_loaded = on_loaded
        self._draining = draining
        self._load_wait = load_wait
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to load."""
        self._loading = asyncio.create_task(self._load_model())

    async def wait(self) -> None:
        """Until the model is loaded. Raises what loading raised."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    async def settle(self) -> None:
        """Until nothing is being loaded any more, whatever came of it."""
        if self._loading is not None:
            await asyncio.wait({self._loading})

    async def ready(self) -> None:
        """Raises Unavailable: loading failed or takes too long, or the daemon is stopping."""
        self.refuse_if_draining()
        if self.loaded is not None:
            return
        try:
            async with asyncio.timeout(self._load_wait):
                await self._loaded_or_draining()
        except TimeoutError as error:
            raise _still_loading() from error
        self.refuse_if_draining()
        self.refuse_if_failed()

    @property
    def present(self) -> Loaded:
        """Raises Unavailable while there is none."""
        if self.loaded is None:
            raise _still_loading()
        return self.loaded

    @property
    def machine(self) -> Machine | None:
        return self.loaded.machine if self.loaded else None

    def refuse_if_draining(self) -> None:
        """Raises Unavailable."""
        if self._draining.is_set():
            raise Unavailable("sessiond is stopping.", hint="Try again in a moment.")

    def refuse_if_failed(self) -> None:
        """Raises Unavailable."""
        if self.failure:
            raise Unavailable(f"The model could not be loaded: {self.failure}")

    async def _load_model(self) -> None:
        try:
            self.loaded = await self._load()
        except SessiondError as error:
            self.failure = str(error)
            raise
        except Exception as error:
            self.failure = repr(error)
            raise EngineError(f"The model could not be loaded: {error!r}.") from error
        self._on_loaded(self.loaded)

    async def _loaded_or_draining(self) -> None:
        if self._loading is None:
            return
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({self._loading, draining}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()


def _still_loading() -> Unavailable:
    return Unavailable("The model is still loading.", hint="Try again later.")
