"""Numbers and times as people read them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessiond.sessions.turn import Miss, SessionSummary

_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def ago(then: float, now: float) -> str:
    """Both Unix seconds: `just now`, `3 min ago`, `5 h ago`, `12 d ago`."""
    for seconds, unit in _AGES:
        if now - then >= seconds:
            return f"{int((now - then) / seconds)} {unit} ago"
    return "just now"


def duration(milliseconds: float) -> str:
    """`0.4 ms`, `85 ms`, `1.2 s`, `41 s`, `12 min`."""
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    return seconds(milliseconds)


def seconds(milliseconds: float) -> str:
    """As `duration`, in tenths of a second at least: for estimates."""
    value = milliseconds / 1000
    if value < 9.95:
        return f"{max(value, 0.1):.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min"


LOADING = "the model is loading"
"""What the daemon says of all sessions until it can look."""


def back_in(session: SessionSummary) -> str:
    """How soon a session can go on: `now`, `0.4 s`, `~41 s needs re-reading: model changed`."""
    if session.state == "resident":
        return "now"
    if session.reason == LOADING:
        return "when the model is there"
    if session.reason:
        return f"~{seconds(session.back_in_ms)} needs re-reading: {session.reason}"
    if session.state == "ledger" and session.tokens:
        return f"~{seconds(session.back_in_ms)} needs re-reading"
    return seconds(session.back_in_ms)


def counted(number: int, noun: str) -> str:
    """`1 token`, `4,096 tokens`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(count: int) -> str:
    """Bytes as `1.5 GiB`."""
    import humanize

    return humanize.naturalsize(count, binary=True)


def missed(miss: Miss | None) -> str:
    return f"{miss.message} ({counted(miss.tokens, 'token')})" if miss else ""


def clean(text: str) -> str:
    """One line that cannot steer a terminal: titles come from clients and models."""
    if text.isprintable():
        neat = "  " not in text and text[:1] != " " and text[-1:] != " "
        return text if neat else " ".join(text.split())
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def harmless(text: str) -> str:
    """Text of several lines that cannot steer a terminal."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")
