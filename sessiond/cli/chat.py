"""`resume --chat`: talk on with a session in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

from sessiond.cli import exits, words
from sessiond.cli.output import note
from sessiond.client import ChatEnd, ChatText, Client, RequestFailed
from sessiond.sessions.turn import ResumeReport

PROMPT = "> "
Messages = list[dict[str, str]]


def talk(client: Client, report: ResumeReport) -> None:
    """Until the end of input. KeyboardInterrupt at the prompt is the caller's."""
    history = [{"role": m.role, "content": m.content} for m in client.transcript(report.session)]
    note(_ready(report))
    for line in _lines():
        try:
            history += _turn(client, report.session, history, line)
        except RequestFailed as error:
            if not sys.stdin.isatty():
                raise
            exits.report(error)


def _ready(report: ResumeReport) -> str:
    tokens = words.counted(report.tokens, "token")
    took = f"{words.duration(report.restore_ms)} ({words.duration(report.predicted_ms)} predicted)"
    return f"{report.session}: {tokens} ready, {report.source}, in {took}. Ctrl-D leaves."


def _turn(client: Client, name: str, history: Messages, line: str) -> Messages:
    """The messages a turn adds. One stopped before its first word adds none."""
    question = {"role": "user", "content": line}
    pieces: list[str] = []
    end: ChatEnd | None = None
    try:
        with closing(client.chat(name, [*history, question])) as events:
            for event in events:
                if isinstance(event, ChatEnd):
                    end = event
                else:
                    pieces.append(event.text)
                    _show(event)
    except KeyboardInterrupt:
        print(flush=True)
        note("stopped")
    else:
        print(flush=True)
    if end is not None:
        note(figures(end))
    reply = {"role": "assistant", "content": "".join(pieces)}
    return [question, reply] if pieces or end else []


def figures(end: ChatEnd) -> str:
    """`turn 41 · disk · 4,071 reused, 21 read · first token in 85 ms`, and what went wrong."""
    parts = [
        f"turn {end.turn}",
        end.source,
        f"{end.cached_tokens:,} reused, {end.prefilled_tokens:,} read",
        f"first token in {words.duration(end.ttft_ms)}",
        words.clean(words.missed(end.miss)),
        "ended by max_tokens or the room" if end.finish_reason == "length" else "",
        "" if end.saved else "not saved yet",
    ]
    return " · ".join(part for part in parts if part)


def _show(piece: ChatText) -> None:
    print(words.harmless(piece.text), end="", flush=True)


def _lines() -> Iterator[str]:
    """What the person types, without empty lines."""
    prompt = PROMPT if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401  (gives input() editing and history)
    while True:
        try:
            line = input(prompt)
        except EOFError:
            if prompt:
                print()
            return
        except KeyboardInterrupt:
            print()
            raise
        if line.strip():
            yield line.encode("utf-8", "replace").decode()
