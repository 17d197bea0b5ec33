"""Calls and forms that SmolLM2 never learnt, forced by a grammar, through the real clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import jsonschema
import openai
import pydantic
import pytest

from scripts.daemon import Daemon

FRONT = "You look things up. Be brief."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 8}},
    "required": ["text"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": PARAMETERS, "note": NOTE}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ANTHROPICS: Any = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
TEMPLATE = Path(__file__).parents[1] / "templates" / "chatml.jinja"
NEW = 60
"""Tokens of a tool's result and a question with all that the template puts around them."""


class Answer(pydantic.BaseModel):
    city: Literal["Bern", "Oslo"]
    warm: bool


@pytest.fixture(scope="module")
def daemon(smol_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Its own template has no tools."""
    state = tmp_path_factory.mktemp("forced")
    options = ["--max-active", "2", "--model-threads", "1"]
    options += ["--model-chat-template-file", str(TEMPLATE)]
    with Daemon(smol_path, state / "state", options) as daemon:
        yield daemon


def standing(told: dict[str, Any]) -> int:
    """Tokens of the line after a turn."""
    timings = told["timings"]
    return int(timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"])


def check_next(told: dict[str, Any], before: int) -> None:
    """Only what is new was evaluated, and one more."""
    timings = told["timings"]
    new = timings["cache_n"] + timings["prompt_n"] - before
    assert 0 < new <= NEW
    assert new <= timings["prompt_n"] <= new + 1
    assert told["sessiond"]["miss"] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [None, "note"])
def test_openais_client_gets_a_call_that_fits_and_goes_on(
    daemon: Daemon, name: str | None, stream: bool
) -> None:
    """No front is like another, so that nothing can be had from another session.

    Result: arguments that follow their schema; their result costs its own tokens.
    """
    base = f"{daemon.url}/s/openai-{name}-{stream}/v1"
    forced: Any = {"type": "function", "function": {"name": name}} if name else "required"
    messages: Any = [
        {"role": "system", "content": f"{base}: {FRONT}"},
        {"role": "user", "content": "How warm is it in Oslo?"},
    ]
    asked: Any = {"model": "m", "tools": TOOLS, "temperature": 0, "max_tokens": 200}
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        chats = client.chat.completions
        told: dict[str, Any] = {}
        if stream:
            with chats.stream(
                messages=messages, tool_choice=forced, parallel_tool_calls=False, **asked
            ) as events:
                for event in events:
                    told |= (event.chunk.model_extra or {}) if event.type == "chunk" else {}
                choice: Any = events.get_final_completion().choices[0]
        else:
            whole = chats.create(
                messages=messages, tool_choice=forced, parallel_tool_calls=False, **asked
            )
            choice, told = whole.choices[0], whole.model_extra or {}
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content or "") == ("tool_calls", "")
        assert name in (None, call.function.name)
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        function = {"name": call.function.name, "arguments": call.function.arguments}
        made = [{"id": call.id, "type": "function", "function": function}]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": made},
            {"role": "tool", "tool_call_id": call.id, "content": "4 degrees"},
        ]
        after = chats.create(messages=messages, tool_choice="none", **{**asked, "max_tokens": 4})
    assert after.choices[0].message.content
    check_next(after.model_extra or {}, standing(told))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [None, "note"])
def test_anthropics_client_gets_a_call_that_fits_and_goes_on(
    daemon: Daemon, name: str | None, stream: bool
) -> None:
    base = f"{daemon.url}/s/anthropic-{name}-{stream}"
    choice: Any = {"type": "tool", "name": name} if name else {"type": "any"}
    choice["disable_parallel_tool_use"] = True
    messages: Any = [{"role": "user", "content": "How warm is it in Oslo?"}]
    asked: Any = {
        "model": "m",
        "system": f"{base}: {FRONT}",
        "tools": ANTHROPICS,
        "max_tokens": 200,
    }
    asked["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        told: dict[str, Any] = {}
        message: Any
        if stream:
            with client.messages.stream(messages=messages, tool_choice=choice, **asked) as events:
                for event in events:
                    told |= (event.model_extra or {}) if event.type == "message_delta" else {}
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, tool_choice=choice, **asked)
            told = message.model_extra or {}
        (call,) = message.content
        assert (message.stop_reason, call.type) == ("tool_use", "tool_use")
        assert name in (None, call.name)
        jsonschema.validate(call.input, SCHEMAS[call.name])
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 degrees"}
        messages += [message.to_param(), {"role": "user", "content": [result]}]
        after = client.messages.create(
            messages=messages, tool_choice={"type": "none"}, **{**asked, "max_tokens": 4}
        )
    assert after.content
    check_next(after.model_extra or {}, standing(told))


def test_parallel_calls_fit_each_for_itself(daemon: Daemon) -> None:
    """Result: as many as it makes, each with an id of its own, and every one fits."""
    with openai.OpenAI(base_url=f"{daemon.url}/s/many/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "How warm is it in Bern and in Oslo?"}],
            tools=TOOLS,
            tool_choice="required",
            temperature=0,
            max_tokens=120,
        )
    made: Any = answer.choices[0].message.tool_calls
    assert made
    assert len({call.id for call in made}) == len(made)
    for call in made:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


def test_forms_are_filled_in(daemon: Daemon) -> None:
    """Through the libraries' own ways to ask for them."""
    question: Any = [{"role": "user", "content": "Is it warm in Oslo?"}]
    with openai.OpenAI(base_url=f"{daemon.url}/s/form/v1", api_key="none") as client:
        told = client.chat.completions.parse(
            model="m", messages=question, response_format=Answer, temperature=0, max_tokens=60
        )
        assert isinstance(told.choices[0].message.parsed, Answer)
        response = client.responses.parse(
            model="m", input="Is it warm in Oslo?", text_format=Answer, max_output_tokens=60
        )
        assert isinstance(response.output_parsed, Answer)
    with anthropic.Anthropic(base_url=f"{daemon.url}/s/form", api_key="none") as claude:
        message = claude.messages.parse(
            model="m", messages=question, output_format=Answer, max_tokens=60
        )
        assert isinstance(message.parsed_output, Answer)
