"""llama.cpp's grammars (GBNF), as llama-server takes them in `grammar`."""

from __future__ import annotations

from llguidance.gbnf_to_lark import gbnf_to_lark

from sessiond.engine.constraint import Constraint, Lark
from sessiond.errors import InvalidRequest

LONGEST = 8 * 1024
"""Bytes: the time to convert one grows with the square of its rules."""
PARAM = "grammar"


def gbnf(text: str) -> Constraint:
    """Blocks for tenths of a second at most. Raises InvalidRequest."""
    if len(text.encode(errors="surrogatepass")) > LONGEST:
        raise _refused(f"is longer than {LONGEST // 1024} KiB")
    try:
        return Constraint(Lark(gbnf_to_lark(text), PARAM))
    except RecursionError:
        raise _refused("is nested too deep") from None
    except Exception as error:  # the converter raises whatever happens to it
        raise _refused(f"cannot be read: {' '.join(str(error).split())[:200]}") from error


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The GBNF grammar {reason}.", param=PARAM)
