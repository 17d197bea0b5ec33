"""A preset fills in what a request leaves open, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.presets import read_presets, template_fields, with_preset
from sessiond.api.routing import ApiConfig
from sessiond.api.schemas import ChatRequest, CompletionRequest, Schema
from sessiond.config.presets import Preset
from sessiond.errors import ConfigError
from sessiond.sessions.transcript import Chat
from tests.api.scripted import ScriptedTurns
from tests.api.serving import served

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": MESSAGES, **fields})


class Responses(Schema):
    """A request of an API that names the limit in its own way and knows no top_k."""

    temperature: float | None = None
    max_output_tokens: int | None = None


def test_what_the_request_leaves_open_is_the_presets() -> None:
    preset = Preset(temperature=0.1, top_k=7, seed=3, max_tokens=99, presence_penalty=1)
    filled = with_preset(chat(top_k=2, seed=None), preset)
    sampling = filled.sampling()
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.1, 2, 3)
    assert sampling.presence_penalty == 1
    assert sampling.top_p == chat().sampling().top_p
    assert filled.token_limit() == 99
    assert filled.messages == chat().messages


def test_zero_is_said() -> None:
    filled = with_preset(chat(temperature=0, min_p=0.0), Preset(temperature=1, min_p=0.5))
    assert (filled.temperature, filled.min_p) == (0, 0)


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_any_limit_of_the_request_stands(limit: str) -> None:
    assert with_preset(chat(**{limit: 5}), Preset(max_tokens=99)).token_limit() == 5


def test_the_limit_goes_by_the_name_the_api_gives_it() -> None:
    preset = Preset(max_tokens=9, top_k=1, temperature=0.5)
    filled = with_preset(Responses(), preset)
    assert filled == Responses(temperature=0.5, max_output_tokens=9)
    assert with_preset(Responses(max_output_tokens=5), preset).max_output_tokens == 5
    raw = with_preset(CompletionRequest(prompt="x"), preset)
    assert (raw.max_tokens, raw.top_k) == (9, 1)


def test_without_a_preset_nothing_changes() -> None:
    request = chat(temperature=0.3)
    assert with_preset(request, None) is request
    assert with_preset(request, Preset(enable_thinking=False)) is request
    assert template_fields(None) == {}


def test_what_is_for_the_template_goes_there() -> None:
    preset = Preset(temperature=1, enable_thinking=False, chat_template_kwargs={"a": 1})
    assert template_fields(preset) == {"enable_thinking": False, "chat_template_kwargs": {"a": 1}}


NUMBERS = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 100),
    "min_p": st.floats(0, 1),
    "repeat_penalty": st.floats(0.5, 2),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "seed": st.integers(-1, 2**63 - 1),
    "max_tokens": st.integers(1, 1000),
}
SOME = st.fixed_dictionaries({}, optional=NUMBERS)


@given(SOME, SOME)
def test_every_value_is_the_requests_else_the_presets(
    said: dict[str, Any], preset: dict[str, Any]
) -> None:
    filled = with_preset(chat(**said), Preset(**preset))
    wanted = {**preset, **said}
    assert {name: getattr(filled, name) for name in NUMBERS} == {
        name: wanted.get(name) for name in NUMBERS
    }


@pytest.mark.parametrize(
    ("preset", "param"),
    [
        (Preset(chat_template_kwargs={"tools": []}), "chat_template_kwargs.tools"),
        (Preset(reasoning_effort="a lot"), "reasoning_effort"),
    ],
)
def test_options_that_no_template_takes_refuse_to_start(preset: Preset, param: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_presets({"fast": preset})
    assert refusal.value.param == f"presets.fast.{param}"
    assert refusal.value.hint


def test_presets_that_can_be_are_read() -> None:
    presets = {"fast": Preset(enable_thinking=False), "deep": Preset(reasoning_effort="high")}
    assert read_presets(presets) == presets


PRESETS = {
    "fast": Preset(temperature=0.25, max_tokens=9, enable_thinking=False, reasoning_effort="low")
}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": MESSAGES},
    "/v1/responses": {"input": "hi"},
}


@pytest.fixture(scope="module")
def chosen() -> Iterator[tuple[httpx.Client, ScriptedTurns]]:
    turns = ScriptedTurns()
    with served(turns, ApiConfig(presets=PRESETS)) as url:
        with httpx.Client(base_url=url, timeout=10) as client:
            yield client, turns


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("model", ["fast", "scripted", None])
def test_every_api_has_presets(
    chosen: tuple[httpx.Client, ScriptedTurns], path: str, model: str | None
) -> None:
    client, turns = chosen
    body = {**ROUTES[path], **({"model": model} if model else {})}
    turns.requests.clear()
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    (request,) = turns.requests
    chose = model == "fast"
    assert request.sampling.temperature == (0.25 if chose else 0.8)
    assert request.ending.max_tokens == (9 if chose else None)
    if isinstance(request.content, Chat):
        told = {"enable_thinking": False, "reasoning_effort": "low"} if chose else {}
        assert dict(request.content.template_options) == told


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/v1/completions"])
def test_every_api_has_options_that_win_over_a_preset(
    chosen: tuple[httpx.Client, ScriptedTurns], path: str
) -> None:
    client, turns = chosen
    turns.requests.clear()
    options = {"enable_thinking": True, "chat_template_kwargs": {"reasoning_effort": "high"}}
    body = {**ROUTES[path], "model": "fast", "temperature": 0, **options}
    assert client.post(path, json=body).status_code == 200
    (request,) = turns.requests
    assert request.sampling.temperature == 0
    assert isinstance(request.content, Chat)
    assert dict(request.content.template_options) == {
        "enable_thinking": True,
        "reasoning_effort": "high",
    }
    body["chat_template_kwargs"] = {"messages": []}
    refused = client.post(path, json=body)
    assert refused.status_code == 400
    assert "chat_template_kwargs.messages" in refused.json()["error"]["message"]
