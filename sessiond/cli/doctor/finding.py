"""What a check has to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """NOTE: good to know. WARNING: works, but not as well as it could. PROBLEM: does not work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """`found` is what was seen. Where that is not well, `meaning` says what follows from it and
    `mend` is what to type or change, "" where nothing can be done.
    """

    check: str
    status: Status
    found: str
    meaning: str = ""
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Status.OK, found)


def note(check: str, found: str, meaning: str = "", mend: str = "") -> Finding:
    return Finding(check, Status.NOTE, found, meaning, mend)


def warning(check: str, found: str, meaning: str, mend: str = "") -> Finding:
    return Finding(check, Status.WARNING, found, meaning, mend)


def problem(check: str, found: str, meaning: str, mend: str = "") -> Finding:
    return Finding(check, Status.PROBLEM, found, meaning, mend)


def worst(findings: Iterable[Finding]) -> Status:
    order = list(Status)
    return max((finding.status for finding in findings), key=order.index, default=Status.OK)
