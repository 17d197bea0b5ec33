"""The servers that a day is spent with: started, measured and ended here, or found somewhere."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

import httpx
import psutil

from scripts.daemon import ANSWER_TIMEOUT_S, Daemon, DaemonFailed

How = Literal["stop", "kill"]
_BLOCK = 512
"""Bytes of a block in getrusage(2)."""


@dataclass(frozen=True, slots=True)
class Place:
    """What all servers are told alike. `slots`: conversations in the context at most."""

    model: Path
    template: Path | None
    n_ctx: int
    slots: int
    threads: int


class Server(Protocol):
    """`written` are bytes since the first start, `resident` those in memory; None: not known."""

    name: str

    @property
    def http(self) -> httpx.Client: ...

    @property
    def written(self) -> int | None: ...

    @property
    def resident(self) -> int | None: ...

    def start(self) -> float:
        """Seconds until it answers."""
        ...

    def restart(self, how: How) -> float | None:
        """Seconds from the new start to its being ready; None where it cannot be restarted."""
        ...

    def close(self) -> None:
        """As SIGTERM; what is left to write has been written afterwards."""
        ...

    def kill(self) -> None:
        """Whatever state it is in; nothing happens if it does not run."""
        ...


def daemon_of(place: Place, state: Path) -> Daemon:
    options = ["--n-ctx", str(place.n_ctx), "--max-active", str(place.slots)]
    options += ["--model-threads", str(place.threads)]
    if place.template:
        options += ["--model-chat-template-file", str(place.template)]
    return Daemon(place.model, state, options)


class Measured:
    """Bytes that a server's processes wrote to disk, one after another."""

    def __init__(self) -> None:
        self._before = 0

    def written(self, pid: int | None) -> int:
        running = 0
        if pid is not None:
            running = int(psutil.Process(pid).io_counters().write_bytes)
        return self._before + running

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Around the end of a process, which this process waits for."""
        before = _children()
        yield
        self._before += _children() - before


def _children() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock * _BLOCK


class Sessiond:
    """A daemon with a state directory of its own."""

    name = "sessiond"

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._measured = Measured()
        self._runs = False

    @classmethod
    def of(cls, place: Place, state: Path) -> Self:
        return cls(daemon_of(place, state))

    @property
    def http(self) -> httpx.Client:
        return self._daemon.http

    @property
    def written(self) -> int | None:
        return self._measured.written(self._daemon.pid if self._runs else None)

    @property
    def resident(self) -> int | None:
        return int(psutil.Process(self._daemon.pid).memory_info().rss)

    def start(self) -> float:
        seconds = self._daemon.start()
        self._runs = True
        return seconds

    def restart(self, how: How) -> float | None:
        self._end(how)
        return self.start()

    def close(self) -> None:
        if self._runs:
            self._end("stop")

    def kill(self) -> None:
        self._daemon.kill()

    def _end(self, how: How) -> None:
        self._runs = False
        with self._measured.ends():
            if how == "kill":
                self._daemon.kill()
            elif code := self._daemon.stop():
                raise DaemonFailed(f"The daemon stopped with {code}.")


class Elsewhere:
    """Any OpenAI-compatible server that runs already; it is not restarted."""

    written = None
    resident = None

    def __init__(self, url: str, key: str = "") -> None:
        self.name = url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = client(url.removesuffix("/").removesuffix("/v1"), headers)

    def start(self) -> float:
        return 0.0

    def restart(self, how: How) -> float | None:
        return None

    def close(self) -> None:
        self.http.close()

    def kill(self) -> None:
        self.http.close()


def client(url: str, headers: dict[str, str] | None = None) -> httpx.Client:
    """Past any proxy."""
    return httpx.Client(
        base_url=url,
        headers=headers,
        transport=httpx.HTTPTransport(),
        timeout=httpx.Timeout(ANSWER_TIMEOUT_S),
        trust_env=False,
    )
