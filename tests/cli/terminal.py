"""The program in a terminal of 80 columns: a pseudo-terminal for all three streams."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence


class Terminal:
    """`screen` is everything shown so far."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            command, env=dict(env), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.screen = ""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, patience: float = 20) -> None:
        """Wait until `text` is shown, after what was waited for before."""
        deadline = time.monotonic() + patience
        while (at := self.screen.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.screen!r}"
            assert self._read(), f"{text!r} is not in {self.screen!r}, and the program has ended"
        self._seen = at + len(text)

    def interrupt(self, patience: float = 5) -> None:
        """Ctrl-C until the program ends: a first one, at the moment in which readline has shown its
        prompt and does not listen yet, is heard with the next key only.
        """
        while self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + patience
            while self.process.poll() is None and time.monotonic() < deadline:
                self._read()

    def finish(self) -> int:
        """Wait for the end of the program. Returns its exit code."""
        while self._read():
            pass
        return self.process.wait(20)

    def lines(self) -> list[str]:
        return self.screen.replace("\r", "").splitlines()

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.screen += data.decode("utf-8", "replace")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@contextlib.contextmanager
def terminal(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Terminal]:
    opened = Terminal(command, env)
    try:
        yield opened
    finally:
        opened.close()
