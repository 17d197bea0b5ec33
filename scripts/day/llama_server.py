"""The stock llama-server with the options that fit agents best, as its own help says in 2026.

One unified cache for all slots, so that a single conversation may use all of it; idle slots keep
what they hold, so that it can be saved; checkpoints at every message; a prompt cache in host RAM.
Before it ends every slot is saved to a file, and restored after the next start. After a SIGKILL
there is nothing but what an earlier end has saved. `--cache-reuse`, which shifts the state of old
text to other positions, is not among them: what it reuses was computed after other text, so the
replies are no longer those of the prompt.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from scripts.daemon import DaemonFailed, free_port
from scripts.day.servers import How, Measured, Place, client

N_BATCH = 512
START_S = 300.0
STOP_S = 60.0
_POLL_S = 0.05
_LOG_LINES = 15


def options_of(place: Place, slots: Path) -> list[str]:
    options = ["-m", str(place.model), "--host", "127.0.0.1"]
    options += ["-c", str(place.n_ctx), "-np", str(place.slots), "-kvu", "--no-cache-idle-slots"]
    options += ["-t", str(place.threads), "-tb", str(place.threads)]
    options += ["-b", str(N_BATCH), "-ub", str(N_BATCH)]
    options += ["-fa", "on", "-ctk", "f16", "-ctv", "f16"]
    options += ["--cache-ram", "8192", "--ctx-checkpoints", "32", "--checkpoint-min-step", "0"]
    options += ["--slot-save-path", str(slots), "--jinja"]
    if place.template:
        options += ["--chat-template-file", str(place.template)]
    return options


class LlamaServer:
    """`more` options come behind those above, and so win."""

    name = "llama-server"

    def __init__(self, binary: Path, place: Place, folder: Path, more: Sequence[str] = ()) -> None:
        self._slots = folder / "slots"
        self._slots.mkdir(parents=True)
        self._log = folder / "llama-server.log"
        self._port = free_port()
        self.command = [str(binary), *options_of(place, self._slots), "--port", str(self._port)]
        self.command += more
        self._count = place.slots
        self._process: subprocess.Popen[bytes] | None = None
        self._measured = Measured()
        self.url = f"http://127.0.0.1:{self._port}"
        self.http: httpx.Client = client(self.url)

    @property
    def written(self) -> int | None:
        return self._measured.written(self._process.pid if self._process else None)

    @property
    def resident(self) -> int | None:
        return int(psutil.Process(self._running.pid).memory_info().rss)

    def start(self) -> float:
        began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait(began + START_S)
        self._restore()
        return time.monotonic() - began

    def restart(self, how: How) -> float | None:
        if how == "stop":
            self._save()
        self._end(how)
        return self.start()

    def close(self) -> None:
        if self._process is not None:
            self._end("stop")
        self.http.close()

    def kill(self) -> None:
        if self._process is not None:
            self._end("kill")

    def erase(self) -> None:
        """Empties all slots; waits for those that are still busy."""
        for slot in range(self._count):
            answer = self._slot(slot, "erase")
            if answer.is_error:
                raise DaemonFailed(f"Slot {slot} was not erased: {answer.text}")

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise DaemonFailed("llama-server does not run.")
        return self._process

    def _end(self, how: How) -> None:
        process = self._running
        with self._measured.ends():
            process.kill() if how == "kill" else process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None

    def _save(self) -> None:
        """An empty slot has nothing to save, and says so with an error or with nothing saved."""
        for slot in range(self._count):
            (self._slots / f"{slot}.bin").unlink(missing_ok=True)
            answer = self._slot(slot, "save")
            if answer.is_error or not answer.json().get("n_saved"):
                (self._slots / f"{slot}.bin").unlink(missing_ok=True)

    def _restore(self) -> None:
        for slot in range(self._count):
            if (self._slots / f"{slot}.bin").exists():
                answer = self._slot(slot, "restore")
                if answer.is_error:
                    raise DaemonFailed(f"Slot {slot} was not restored: {answer.text}")

    def _slot(self, slot: int, action: str) -> httpx.Response:
        asked = {"filename": f"{slot}.bin"}
        return self.http.post(f"/slots/{slot}", params={"action": action}, json=asked)

    def _wait(self, deadline: float) -> None:
        while not self._is_ready():
            code = self._running.poll()
            if code is not None or time.monotonic() > deadline:
                self.kill()
                lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                told = "\n".join(lines)
                raise DaemonFailed(f"llama-server did not get ready ({code}).\n{told}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False
