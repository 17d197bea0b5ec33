"""What the daemon says on its terminal: progress, then what to paste. Quiet in a pipe."""

from __future__ import annotations

import logging

from rich.console import Console as Terminal
from rich.progress import Progress

from sessiond.engine.devices import missing_gpu
from sessiond.sessions.lifecycle import Lifecycle
from sessiond.sessions.stopping import StopReport
from sessiond.sessions.turn import Health

logger = logging.getLogger("sessiond")


class Console:
    """`progress` may be called from any thread, the rest from the event loop."""

    def __init__(self, model: str) -> None:
        self._terminal = Terminal(stderr=True, highlight=False)
        self._bar = Progress(console=self._terminal, transient=True)
        self._task = self._bar.add_task(f"Loading {model}", total=1.0)
        self._addresses: list[str] = []
        self._lifecycle: Lifecycle | None = None

    def watch(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        if self._terminal.is_terminal:
            self._bar.start()

    def progress(self, share: float) -> None:
        self._bar.update(self._task, completed=share)
        if self._lifecycle is not None:
            self._lifecycle.progressed(share)

    def bound(self, addresses: list[str]) -> None:
        self._addresses = addresses
        logger.info("Listening on %s.", ", ".join(addresses))

    def ready(self, health: Health) -> None:
        self.close()
        logger.info(
            "Serving %s (%s memory, %d tokens, state saved as %s).",
            health.model,
            health.memory_kind,
            health.n_ctx or 0,
            health.codec,
        )
        gpu = missing_gpu()
        if gpu:
            logger.warning(
                "There is a GPU, but llama.cpp was built without it. Do: make run GPU=%s", gpu
            )
        if self._terminal.is_terminal:
            self._terminal.print(_paste(self._url()))

    def stopped(self, report: StopReport) -> None:
        """One line with the figures; another where turns are lost."""
        flushed = report.flushed
        logger.info(
            "Stopped: %d sessions saved, %d bytes written, %.0f ms;"
            " %d replies ended by themselves, %d were cut, %d had not begun.",
            flushed.saved,
            flushed.bytes,
            report.ms,
            report.ended,
            report.cut,
            report.refused,
        )
        if flushed.lost:
            logger.warning("The state of %d sessions is not saved: it costs time.", flushed.lost)
        if report.unsaved_turns:
            logger.error("%d turns could not be written and are lost.", report.unsaved_turns)

    def close(self) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def _url(self) -> str:
        return next((a for a in self._addresses if a.startswith("http")), "http://127.0.0.1:8484")


def _paste(url: str) -> str:
    return f"""
Talk to it under a session name, with any OpenAI client or with curl:

  curl {url}/s/my-chat/v1/chat/completions \\
    -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Hello, who are you?"}}]}}'

An agent needs only this:  OPENAI_BASE_URL={url}/s/my-agent/v1  OPENAI_API_KEY=none

Then, in another terminal:  .venv/bin/sessiond list   and   .venv/bin/sessiond resume my-chat --chat
Stop it with Ctrl-C and start it again: the talk goes on where it was.
"""
