"""How the log is written: for people, for journald, or as JSON. Every module logs with `logging`.

What belongs to an event is given as `extra`, and stands behind it as `key=value`. Requests,
replies, keys, and the names that people give their sessions are never logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Literal

import structlog
from structlog.stdlib import ProcessorFormatter

from sessiond.config.settings import Log

Format = Literal["text", "journal", "json"]
Event = MutableMapping[str, Any]

_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""syslog's, which journald takes from the beginning of a line."""
_COLOURS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_PLAIN = "\x1b[0m"
_VALUES = structlog.processors.LogfmtRenderer(bool_as_flag=False)
_OURS = ("sessiond", "llama_cpp")


def configure(settings: Log) -> None:
    """Log to stderr from now on, as `settings` say; call again to change them. Any thread."""
    form = _form(settings)
    handler = _Stderr()
    handler.setFormatter(formatter(form, colour=form == "text" and _shows_colours()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    # Other libraries log what they are given, with all that clients have said: only their warnings.
    root.setLevel(max(level, logging.WARNING))
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    logging.getLogger("uvicorn").setLevel(level if level < logging.INFO else root.level)


def formatter(form: Format, *, colour: bool = False) -> logging.Formatter:
    """Any number of lines for each record, all of which have journald's prefix where that reads."""
    writers: dict[Format, Callable[[Any, str, Event], str]] = {
        "text": _Text(colour),
        "journal": _journal,
        "json": _json,
    }
    return ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
        ],
        processors=[
            structlog.processors.TimeStamper(
                fmt="iso" if form == "json" else "%Y-%m-%d %H:%M:%S", utc=form == "json"
            ),
            ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            writers[form],
        ],
    )


def to_journal() -> bool:
    """Whether stderr is the journal that systemd has opened for this process."""
    try:
        stat = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


def _form(settings: Log) -> Format:
    if settings.format != "auto":
        return settings.format
    return "journal" if to_journal() else "text"


def _shows_colours() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


class _Stderr(logging.Handler):
    """Whatever sys.stderr is then: while a progress bar is shown, that is the bar's."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except OSError:
            self.handleError(record)


def _json(_logger: object, _method: str, event: Event) -> str:
    return json.dumps(event, ensure_ascii=False, default=str)


def _journal(_logger: object, _method: str, event: Event) -> str:
    level, trace = event.pop("level"), event.pop("exception", "")
    event.pop("timestamp", None)  # journald has its own
    lines = [_told(event), *trace.splitlines()]
    return "\n".join(f"<{_PRIORITIES[level]}>{_one_line(line)}" for line in lines)


def _told(event: Event) -> str:
    """What happened, then the values that belong to it. Of other libraries, who says so first."""
    said, name = event.pop("event"), event.pop("logger")
    before = "" if name.startswith("sessiond") else f"{name}: "
    return f"{before}{said}  {_VALUES(None, '', event)}".rstrip()


class _Text:
    """`2026-11-30 11:14:45 info     what happened  key=value`."""

    def __init__(self, colour: bool) -> None:
        self._colours = _COLOURS if colour else {}

    def __call__(self, _logger: object, _method: str, event: Event) -> str:
        level, when = event.pop("level"), event.pop("timestamp")
        trace = event.pop("exception", "")
        colour = self._colours.get(level, "")
        line = f"{when} {colour}{level:<8}{_PLAIN if colour else ''} {_one_line(_told(event))}"
        return "\n".join([line, *map(_one_line, trace.splitlines())])


def _one_line(text: str) -> str:
    """Nothing in a message begins a line of its own, or steers a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
