"""Exit codes, and the one line on stderr that goes with them."""

from __future__ import annotations

import sys

import typer

from sessiond.errors import SessiondError, SessionNotFound

DONE = 0
FAILED = 1
USAGE = 2
NO_SUCH_SESSION = 4
UNREACHABLE = 75
INTERRUPTED = 130


def report(error: typer.TyperException | SessiondError) -> int:
    """Say what went wrong on stderr, in one line. Returns the exit code."""
    text = _usage(error) if isinstance(error, typer.TyperException) else str(error)
    print(f"sessiond: {' '.join(text.split())}", file=sys.stderr)
    return code_of(error)


def code_of(error: typer.TyperException | SessiondError) -> int:
    if isinstance(error, typer.TyperException):
        return error.exit_code
    if isinstance(error, SessionNotFound):
        return NO_SUCH_SESSION
    return {"daemon_unreachable": UNREACHABLE, "bad_address": USAGE}.get(error.code, FAILED)


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "sessiond"
    message = error.format_message().rstrip(".")
    stop = "" if message.endswith(("?", "!")) else "."
    return f"{message}{stop} See: {command} --help"
