"""What the OpenAPI document says of names and numbers is what is accepted."""

from __future__ import annotations

import json
import re
from math import isfinite

import httpx
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessiond.api.identity import NAME_LENGTH, NAME_PATTERN, session_name
from sessiond.api.routing import parsed
from sessiond.errors import InvalidRequest
from tests.api.scripted import ScriptedTurns

HALF = b'{"half": "\\ud800", "number": %s}'


def accepted(name: str) -> bool:
    try:
        return bool(session_name(name, param="name"))
    except InvalidRequest:
        return False


@given(
    st.text(st.characters(codec="utf-8"), max_size=8) | st.text(" a/\x00\x7f\u2028é", max_size=6)
)
@example("")
@example("   ")
@example(" a b ")
@example("a" * NAME_LENGTH)
@example("a" * (NAME_LENGTH + 1))
@example("a\n")
def test_the_pattern_of_names(name: str) -> None:
    assert bool(re.fullmatch(NAME_PATTERN, name)) == accepted(name)


@pytest.mark.parametrize("field", ["max_tokens", "top_k", "seed", "repeat_last_n"])
@pytest.mark.parametrize(
    ("number", "status"), [("4.0", 200), ("4e0", 200), ("4.5", 400), ("1e300", 400), ("true", 400)]
)
def test_an_integer_may_have_a_point(
    client: httpx.Client, turns: ScriptedTurns, field: str, number: str, status: int
) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "Hi"}}], "{field}": {number}}}'
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["param"] == field


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(2**64))
def test_numbers_beside_half_a_character_are_read_as_elsewhere(number: float) -> None:
    read = parsed(HALF % json.dumps(number).encode())["number"]
    assert read == orjson.loads(json.dumps(number))
    assert orjson.loads(orjson.dumps(read)) == read


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "9" * 400, "9" * 5000, "NaN", "Infinity"])
def test_numbers_that_cannot_be_written_again_are_refused(digits: str) -> None:
    assert not isfinite(float(digits))
    with pytest.raises(json.JSONDecodeError):
        parsed(HALF % digits.encode())
