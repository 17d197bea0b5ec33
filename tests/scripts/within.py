"""A daemon with a FakeEngine in this process, behind one real port: starts in no time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from scripts.day.servers import How, client
from tests.api.serving import serving
from tests.rig.rig import Daemon, Rig, fake
from tests.sessions.kinds import MEMORIES


class _Current:
    """Stands for the lifecycle of the daemon that lives now."""

    def __init__(self) -> None:
        self.daemon: Daemon | None = None

    def __getattr__(self, name: str) -> Any:
        assert self.daemon is not None, "no daemon lives"
        return getattr(self.daemon.lifecycle, name)


class Host:
    """The port, and the loop that daemons live on, in a thread of its own."""

    def __init__(self) -> None:
        self.turns = _Current()
        self.loop = asyncio.new_event_loop()
        self.url = ""

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@contextmanager
def hosting() -> Iterator[Host]:
    host = Host()
    thread = threading.Thread(target=host.loop.run_forever)
    thread.start()
    served = serving(host.turns)  # type: ignore[arg-type]
    host.url = host.call(served.__aenter__())
    try:
        yield host
    finally:
        host.call(served.__aexit__(None, None, None))
        host.loop.call_soon_threadsafe(host.loop.stop)
        thread.join(10)
        host.loop.close()


class Within:
    """A `scripts.day.servers.Server`."""

    name = "sessiond"
    written = None
    resident = None

    def __init__(
        self,
        host: Host,
        kind: str,
        directory: Path,
        *,
        replies: Sequence[str] = (),
        template: str | None = None,
    ) -> None:
        self._host = host
        self._rig = Rig(directory, fake(MEMORIES[kind], replies=replies), template=template)
        self.http: httpx.Client = client(host.url)

    def start(self) -> float:
        self._host.call(self._begin())
        return 0.0

    def restart(self, how: How) -> float | None:
        self._host.call(self._end(how))
        return self.start()

    def close(self) -> None:
        self._host.call(self._end("stop"))

    def kill(self) -> None:
        self._host.call(self._end("kill"))
        self.http.close()

    def rest(self, _seconds: float) -> None:
        """Nobody asks for so long that all is saved: what a daemon does then is done at once."""
        self._host.call(self._save())

    async def _save(self) -> None:
        assert self._host.turns.daemon is not None, "no daemon lives"
        await self._host.turns.daemon.machine.saver.save_all()

    async def _begin(self) -> None:
        self._host.turns.daemon = Daemon(self._rig)
        await self._host.turns.daemon.start()

    async def _end(self, how: How) -> None:
        daemon, self._host.turns.daemon = self._host.turns.daemon, None
        if daemon is not None:
            await (daemon.kill() if how == "kill" else daemon.stop())
