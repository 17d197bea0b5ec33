"""Who is compared under many streams, each a process of its own; all but one sleep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from scripts.daemon import Daemon, DaemonFailed, ask
from scripts.day.llama_server import LlamaServer
from scripts.day.servers import Place, daemon_of
from scripts.load_loops import KEY, Heard, Stream
from scripts.rivals import Rivals

BARE = "bare"
OURS = ("daemon", "engine")


class Contestant:
    """A process of `load_loops`; `path` is where a client asks for a round's stream."""

    def __init__(
        self,
        *arguments: str,
        path: Callable[[str], str] = str,
        forget: Callable[[Sequence[str]], None] | None = None,
        key: str = "",
    ) -> None:
        """`forget` is told the paths after each run."""
        self.path = path
        self._forget = forget
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.load_loops", *arguments],
            env={**os.environ, KEY: key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._orders, self._answers = _pipe(self._process.stdin), _pipe(self._process.stdout)
        if not self._answers.readline():
            raise DaemonFailed(f"{' '.join(arguments)} did not start.")

    def run(self, streams: Sequence[Stream]) -> list[Heard]:
        order = json.dumps([asdict(stream) for stream in streams])
        try:
            answer = ask(self._orders, order, self._answers)
        except (json.JSONDecodeError, BrokenPipeError) as error:
            raise DaemonFailed("A contestant broke off; see above.") from error
        if self._forget is not None:
            self._forget([stream.path for stream in streams])
        return [Heard(**heard) for heard in answer["streams"]]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def contestants(place: Place, folder: Path, rivals: Rivals) -> Iterator[dict[str, Contestant]]:
    """All of one place: model, context, slots and threads are the same."""
    with ExitStack() as stack:

        def start(*arguments: str, **more: Any) -> Contestant:
            contestant = Contestant(*arguments, **more)
            stack.callback(contestant.close)
            return contestant

        daemon = stack.enter_context(daemon_of(place, folder / "state"))
        found = {"daemon": start("client", daemon.url, path=_path, forget=_forget(daemon))}
        for kind in ("engine", BARE):
            found[kind] = start(kind, str(place.model), str(place.threads), str(place.n_ctx))
        if rivals.binary is not None:
            server = LlamaServer(rivals.binary, place, folder / "stock", rivals.options)
            stack.callback(server.close)
            server.start()
            found[server.name] = start(
                *("client", server.url), path=_stock_path, forget=lambda _: server.erase()
            )
        if rivals.url:
            found[rivals.url] = start("client", rivals.url, path=_stock_path, key=rivals.key)
        yield found


def _path(session: str) -> str:
    return f"/s/{session}/v1/completions"


def _stock_path(_: str) -> str:
    return "/v1/completions"


def _forget(daemon: Daemon) -> Callable[[Sequence[str]], None]:
    """Deletes the sessions of the paths when their turns have ended: nothing is left to be saved.

    So does `LlamaServer.erase` with its slots.
    """

    def forget(paths: Sequence[str]) -> None:
        for path in paths:
            session = path.split("/")[2]
            while (answer := daemon.http.delete(f"/v1/sessions/{session}")).status_code == 409:
                time.sleep(0.05)
            if answer.status_code not in (204, 404):
                raise DaemonFailed(f"{session} could not be deleted: {answer.text}")

    return forget


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise TypeError("the process was started without a pipe")
    return stream
