"""`sessiond resume`: bring a session back into the model's memory, and talk on."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sessiond.cli import words
from sessiond.cli.chat import talk
from sessiond.cli.options import AsJson, Name, Url
from sessiond.cli.output import note, print_facts, print_json
from sessiond.client import Client
from sessiond.errors import Unavailable
from sessiond.sessions.turn import Health, ResumeReport

if TYPE_CHECKING:
    from rich.status import Status

POLL_SECONDS = 0.25
SOURCES = {
    "resident": "the model's memory: it was there already",
    "disk": "disk",
    "ledger": "its text: the model read all of it again",
    "fork": "another line of the session",
    "new": "nothing: the session is empty",
}
Chat = Annotated[bool, typer.Option("--chat", help="Go on talking here. Ctrl-D leaves.")]


def resume(name: Name, chat: Chat = False, as_json: AsJson = False, url: Url = None) -> None:
    """Bring a session back, so that the next reply starts at once.

    With --chat you go on talking in this terminal. Ctrl-C stops a reply, and leaves at the prompt.
    """
    if chat and as_json:
        raise typer.BadParameter("--chat is for people: it cannot be used with --json")
    with Client(url) as client:
        wait_for_model(client, name)
        report = client.resume(name)
        if as_json:
            print_json(asdict(report))
        elif not chat:
            print_facts(_facts(report))
        else:
            talk(client, report)


def wait_for_model(client: Client, name: str) -> None:
    """Until it is loaded. Raises SessionNotFound at once, Unavailable where it will not come."""
    health = client.health()
    if health.status == "loading":
        client.session(name)
        with _spinner() as spinner:
            while health.status == "loading":
                if spinner is not None:
                    spinner.update(_progress(health))
                time.sleep(POLL_SECONDS)
                health = client.health()
    if health.status == "unloaded":
        note("The model left memory because nobody used it. It is loaded again.")
    if health.status == "draining":
        raise Unavailable("sessiond is stopping.", hint="Try again when it has started anew.")
    if health.status == "failed":
        raise Unavailable(f"The model could not be loaded: {health.detail}.", hint="See the log.")


def _spinner() -> AbstractContextManager[Status | None]:
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("")


def _progress(health: Health) -> str:
    share = f" {health.loading_progress:.0%}" if health.loading_progress is not None else ""
    return f"The model is loading{share}"


def _facts(report: ResumeReport) -> list[tuple[str, str]]:
    return [
        ("Session", report.session),
        ("From", SOURCES.get(report.source, report.source)),
        ("Ready", words.counted(report.tokens, "token")),
        ("Restored", words.counted(report.restored_tokens, "token")),
        ("Read again", words.counted(report.prefilled_tokens, "token")),
        ("Because", words.missed(report.miss)),
        (
            "Took",
            f"{words.duration(report.restore_ms)}, {words.duration(report.predicted_ms)} predicted",
        ),
    ]
