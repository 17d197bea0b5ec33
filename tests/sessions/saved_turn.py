"""A daemon's one save, in a process that may be traced, failed or killed in any system call of it.

Reads `DIRECTORY KIND` and forks a child for it. The child talks, writes a line with its process id
and the system's ids of its threads, waits for a line, and then saves one turn more: commit, state
files, index, a clean stop. It writes what it was told of that. The parent writes how it ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from sessiond.metrics import SAVE_FAILURES
from tests.rig import Daemon
from tests.sessions.kinds import MEMORIES, rig_of
from tests.sessions.talk import Talk

TURNS = 2
ANYBODY = -1
PR_SET_PTRACER = 0x59616D61


def say(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def heard() -> str:
    """A line, read byte by byte: parent and child share the pipe."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line.decode().strip()


async def save_one_turn(directory: Path, kind: str) -> None:
    async with rig_of(kind, directory).daemon() as daemon:
        talk = Talk(kind)
        await talk.turns(daemon, TURNS)
        await daemon.machine.saver.save_all()
        threads = {thread.native_id: thread.name for thread in threading.enumerate()}
        say(pid=os.getpid(), threads=threads)
        heard()
        await talk.turns(daemon, 1)
        say(saved=talk.replies[-1].report.saved, problem=daemon.lifecycle._register.problem or "")
        failures = SAVE_FAILURES._value.get()
        await daemon.machine.saver.save_all()
        covered, failed = await is_on_disk(daemon, kind), SAVE_FAILURES._value.get() - failures
        say(unsaved=await daemon.lifecycle._register.retry())
        await daemon.machine.saver.save_all()
        say(covered=covered, failed=failed, covered_again=await is_on_disk(daemon, kind))
    say(stopped=True)


async def is_on_disk(daemon: Daemon, kind: str) -> bool:
    """Whether all state of the talk's line can be had from files alone."""
    (view,) = [view for view in await daemon.machine.engine.views() if len(view.tokens)]
    stored, memory = daemon.machine.store.lookup(view.tokens), MEMORIES[kind]
    cells = stored.tokens == len(view.tokens) or not memory.has_blocks
    last = any(s.position == len(view.tokens) for s in stored.snapshots)
    return cells and (last or not memory.needs_snapshot)


def main() -> None:
    while asked := heard():
        directory, kind = asked.rsplit(" ", 1)
        child = os.fork()
        if child == 0:
            # Where only a parent may trace its children, this one lets itself be traced.
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
            try:
                asyncio.run(save_one_turn(Path(directory), kind))
            except BaseException as error:
                say(crashed=repr(error))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main())
