"""Why a request differs from what was known: from the two texts and the order of messages. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "clock",
    "date",
    "identifier",
    "tools_changed",
    "whitespace",
    "system_changed",
    "history_edited",
    "history_summarised",
    "front_trimmed",
    "reordered",
    "other",
]
Volatile = Literal["clock", "date", "identifier"]

_MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    "|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
)
_DAYS = "(?:Mon|Fri|Sun)(?:day)?|Tue(?:s(?:day)?)?|Wed(?:nesday)?|Thu(?:rs?(?:day)?)?|Sat(?:urday)?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_HEX = "[0-9a-fA-F]"
_LABEL = r"(?:(?<=[iI][dD][ :=#])|(?<=[iI][dD][:=] )|(?<=[iI][dD]\": )|(?<=[iI][dD]\": \")|(?<=#))"
VOLATILE: dict[Volatile, re.Pattern[str]] = {
    "clock": re.compile(
        r"(?<![\d:])(?:\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?"
        r"(?:\s?(?:Z|UTC|GMT)\b|[+-]\d{2}:?\d{2})?|\d{1,2}\s?[AaPp]\.?[Mm]\b\.?)(?![\d:])"
    ),
    "date": re.compile(
        r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?=T?\b|T\d)|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
        rf"|\b(?:{_DAYS})\b"
        rf"|\b(?:{_MONTHS})\.?\s{_DAY}\b(?:,?\s\d{{4}}\b)?"
        rf"|\b{_DAY}\.?\s(?:{_MONTHS})\b\.?(?:,?\s\d{{4}}\b)?"
    ),
    "identifier": re.compile(
        rf"\b{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\b"
        r"|\b(?=[0-9]*[a-zA-Z])(?=[a-zA-Z]*\d)[0-9a-zA-Z]{8,}\b"
        rf"|{_LABEL}\d+\b|\b\d{{9,}}\b"
        r"|(?<![A-Za-z0-9_-])[A-Za-z]+[_-](?:[A-Za-z0-9]+[_-])*?(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{4,}\b"
        r"(?:[_-][A-Za-z0-9]+\b)*"
    ),
}
"""Dates before ids: what looks like both is a date. A clock may have a zone behind it. A number is
an id where it is called one, or as long as a Unix time.
"""
_SLOT = "\x00"


@dataclass(frozen=True, slots=True)
class Change:
    """What kind of thing changed between two texts; `before` and `after` are its two values."""

    kind: Volatile | Literal["whitespace"]
    before: str = ""
    after: str = ""


def volatile_change(before: str, after: str) -> Change | None:
    """What alone differs: white space, or clocks, dates and ids; None where anything else does."""
    if before.split() == after.split():
        return Change("whitespace")
    alone = [kind for kind, pattern in VOLATILE.items() if _masked_same(pattern, before, after)]
    if alone:
        return _first(alone[0], VOLATILE[alone[0]], before, after)
    if mask(before) != mask(after):
        return None
    changes = [_first(kind, pattern, before, after) for kind, pattern in VOLATILE.items()]
    return next((change for change in changes if change.before != change.after), None)


def mask(text: str) -> str:
    """The text without its clocks, dates and ids."""
    for pattern in VOLATILE.values():
        text = pattern.sub(_SLOT, text)
    return text


def _masked_same(pattern: re.Pattern[str], before: str, after: str) -> bool:
    return pattern.sub(_SLOT, before) == pattern.sub(_SLOT, after)


def _first(kind: Volatile, pattern: re.Pattern[str], before: str, after: str) -> Change:
    pairs = zip(pattern.findall(before), pattern.findall(after), strict=False)
    old, new = next(((a, b) for a, b in pairs if a != b), ("", ""))
    return Change(kind, old, new)
