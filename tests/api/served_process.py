"""A scripted daemon as a process of its own: `python -m tests.api.served_process on_stop=…`.

Writes its address, then a line for each thing that happens. `on_stop` is "drain" (waits for running
turns), "hang" or "fail".
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sessiond.api.app import create_app
from sessiond.api.listening import listen_tcp, listen_unix
from sessiond.api.routing import ApiConfig
from sessiond.api.server import run_server
from tests.api.scripted import ScriptedTurns


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(on_stop: str, socket_path: str) -> int:
    turns = ScriptedTurns(deltas=("a", "b", "c", "d"), slow=0.1)

    async def stop() -> None:
        say("stopping")
        if on_stop == "fail":
            raise RuntimeError("no")
        while on_stop == "hang" or turns.finished < turns.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        say("drained")

    listeners = listen_tcp("127.0.0.1", 0)
    if socket_path:
        listeners.append(listen_unix(Path(socket_path)))
    app = create_app(turns, ApiConfig())
    return await run_server(
        app, listeners, on_stop=stop, on_bound=lambda bound: say(" ".join(bound)), grace=3
    )


if __name__ == "__main__":
    code = asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
    say("returned")
    sys.exit(code)
