"""A body that is nested too deeply is the client's mistake, and nobody else's trouble."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sessiond.api.routing import DEPTH
from tests.api.scripted import ScriptedTurns


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def body(depth: int, field: str = "chat_template_kwargs") -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"messages": messages, "max_tokens": 2, field: {"k": nested(depth)}}


@pytest.mark.parametrize("depth", [DEPTH, 300, 600, 900])
@pytest.mark.parametrize("field", ["chat_template_kwargs", "metadata"])
def test_too_much_depth_is_refused(
    client: httpx.Client, turns: ScriptedTurns, depth: int, field: str
) -> None:
    answer = client.post("/v1/chat/completions", json=body(depth, field))
    assert answer.status_code == 400
    assert f"{DEPTH} levels" in answer.json()["error"]["message"]
    assert turns.requests == []


def test_what_schemas_have_is_accepted(client: httpx.Client, turns: ScriptedTurns) -> None:
    assert client.post("/v1/chat/completions", json=body(DEPTH - 3)).status_code == 200
    assert len(turns.requests) == 1


@pytest.mark.parametrize("kind", [["text"], {"a": 1}, None, 7])
def test_a_part_whose_type_is_no_word_is_the_clients_mistake(
    client: httpx.Client, kind: object
) -> None:
    odd = {"role": "user", "content": [{"type": kind, "text": "x"}]}
    for later in ([], [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]):
        answer = client.post("/v1/chat/completions", json={"messages": [odd, *later]})
        assert answer.status_code == (200 if later else 400)
