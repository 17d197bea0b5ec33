"""What SQLite says of a damaged file, without the words of people that it quotes."""

from __future__ import annotations

import re
import sqlite3

# All our SQL is fixed, so an error in it is one of the tables it asks.
_DAMAGE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNREADABLE = re.compile(r"(Could not decode to UTF-8 column '\w*').*", re.DOTALL)
"""sqlite3 gives no code for text that is none, and quotes it."""


def is_damage(error: BaseException | None) -> bool:
    """Whether the file itself is at fault, not the disk nor another process."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return _UNREADABLE.match(str(error)) is not None
    return code & 0xFF in _DAMAGE


def is_stuck(error: BaseException | None) -> bool:
    """Whether the connection holds a lock that it cannot give back: only another one will do."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_PROTOCOL


def worded(error: BaseException | None) -> str:
    """The driver's words. What is stored in the file is not among them."""
    return _UNREADABLE.sub(r"\1", str(error))
