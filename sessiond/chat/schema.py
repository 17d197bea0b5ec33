"""JSON schemas as clients send them: what could take for ever to compile is refused first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from math import lcm

from sessiond.errors import InvalidRequest

LONGEST = 256 * 1024
"""Bytes."""
DEEPEST = 100
"""Levels of lists and objects; llguidance reads no more than 127."""
_LEAST_COMMON = 10_000
_WORK = 500_000
"""A multiple is a state machine of as many states: three microseconds each to compile."""


def checked(schema: str, param: str) -> object:
    """The parsed schema. Raises InvalidRequest that names `param`."""
    if len(schema.encode(errors="surrogatepass")) > LONGEST:
        raise _refused(f"is longer than {LONGEST // 1024} KiB", param)
    try:
        parsed: object = json.loads(schema, parse_constant=_no_number)
        nodes = list(_nodes(parsed))
    except RecursionError:
        raise _refused(f"is nested deeper than {DEEPEST} levels", param) from None
    except ValueError as error:
        raise _refused(f"is no JSON: {error}", param) from error
    if not isinstance(parsed, dict | bool):
        raise _refused("must be an object", param)
    _check_multiples(nodes, param)
    return parsed


def _nodes(parsed: object) -> Iterator[dict[str, object]]:
    """Its objects, in any order. Raises RecursionError where it is too deep."""
    left: list[tuple[object, int]] = [(parsed, 1)]
    while left:
        value, depth = left.pop()
        if not isinstance(value, dict | list):
            continue
        if depth > DEEPEST:
            raise RecursionError
        if isinstance(value, dict):
            yield value
        children = value.values() if isinstance(value, dict) else value
        left += [(child, depth + 1) for child in children]


def _check_multiples(nodes: list[dict[str, object]], param: str) -> None:
    given = [node.get("multipleOf") for node in nodes]
    states = [_states(one) for one in given if type(one) in (int, float)]
    common = _least_common(states)
    if common > _LEAST_COMMON or (states and common * len(nodes) > _WORK):
        raise _refused("has a multipleOf with too many digits, or too many of them", param)


def _states(multiple: object) -> int:
    """Its digits as a whole number, 1 at least: a power of ten costs nothing."""
    digits = Decimal(str(multiple)).normalize().as_tuple().digits
    return max(1, int("".join(map(str, digits))))


def _least_common(numbers: list[int]) -> int:
    """Their least common multiple, as soon as it is too large."""
    common = 1
    for number in numbers:
        common = lcm(common, number)
        if common > _LEAST_COMMON:
            break
    return common


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number")


def _refused(reason: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The JSON schema {reason}.", hint="Send a smaller or simpler one.", param=param
    )
