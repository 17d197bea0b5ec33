"""Replies in a form that the client wants, through the ways that its libraries have for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from itertools import product
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pydantic
import pytest

from sessiond.chat import gbnf, schema
from tests.api.live.recorder import Json
from tests.api.live.refusal import refused
from tests.api.live.world import World, rig_of, template, world_of

HI: Any = [{"role": "user", "content": "Who?"}]
ASK: Any = {"model": "m", "messages": HI, "temperature": 0}
APIS = ["chat", "responses", "messages"]


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = pydantic.Field(ge=3, le=4)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    pets: list[Pet] = pydantic.Field(max_length=2)


BO = Person(name="Bö", pets=[Pet(kind="dog", legs=3)])
SHAPE: Json = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["word", "count"],
    "additionalProperties": False,
}
THOUGHT = "<think>\nWho is it?\n</think>\n\n"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Its model does not reason, so that what it makes up has an end."""
    async with world_of(rig_of("attention", tmp_path, template("chatml.jinja"))) as world:
        yield world


async def test_pydantic_models_are_filled_in(world: World) -> None:
    await fill_in(world, "")


async def test_pydantic_models_are_filled_in_behind_reasoning(tmp_path: Path) -> None:
    async with world_of(rig_of("attention", tmp_path, template("qwen.jinja"))) as world:
        await fill_in(world, THOUGHT)


async def fill_in(world: World, thought: str) -> None:
    """Through every `parse` and `stream` that the libraries have."""
    chats, responses, messages = (
        world.openai.chat.completions,
        world.openai.responses,
        world.claude.messages,
    )
    asked: Any = {"model": "m", "input": "Who?", "text_format": Person}
    claude: Any = {**ASK, "max_tokens": 999, "output_format": Person}
    del claude["temperature"]
    said = thought + BO.model_dump_json()
    world.will_say(*[said] * 6)
    whole = await chats.parse(**ASK, response_format=Person)
    assert whole.choices[0].message.parsed == BO
    async with chats.stream(**ASK, response_format=Person) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == BO
    assert (await responses.parse(**asked)).output_parsed == BO
    async with responses.stream(**asked) as events:
        assert (await events.get_final_response()).output_parsed == BO
    assert (await messages.parse(**claude)).parsed_output == BO
    async with messages.stream(**claude) as told:
        assert (await told.get_final_message()).parsed_output == BO


async def said_with(world: World, api: str, shape: Json | None, *, stream: bool = False) -> str:
    """Asks for JSON that follows `shape`, any object for None; `stream` is never read."""
    wanted: Any
    if api == "chat":
        form = {"name": "x", "schema": shape}
        wanted = {"type": "json_schema", "json_schema": form} if shape else {"type": "json_object"}
        chat: Any = await world.openai.chat.completions.create(
            **ASK, response_format=wanted, stream=stream
        )
        return str(chat.choices[0].message.content)
    form = {"type": "json_schema", "schema": shape or {"type": "object"}}
    if api == "responses":
        wanted = {"name": "x", **form} if shape else {"type": "json_object"}
        response: Any = await world.openai.responses.create(
            model="m", input="Who?", text={"format": wanted}, stream=stream
        )
        return str(response.output_text)
    message: Any = await world.claude.messages.create(
        model="m", max_tokens=999, messages=HI, output_config={"format": form}, stream=stream
    )
    return str(message.content[0].text)


@pytest.mark.parametrize("api", APIS)
async def test_what_the_model_makes_up_follows_the_schema(world: World, api: str) -> None:
    """Nothing is scripted, and then something that is no JSON. Result: both times it fits."""
    first = json.loads(await said_with(world, api, SHAPE))
    world.will_say("I would rather not.")
    for told in (first, json.loads(await said_with(world, api, SHAPE))):
        jsonschema.validate(told, SHAPE)


@pytest.mark.parametrize("api", APIS)
async def test_any_object(world: World, api: str) -> None:
    world.will_say('{"a": [1, {"b": null}]}')
    assert json.loads(await said_with(world, api, None)) == {"a": [1, {"b": None}]}


async def test_a_grammar_of_llama_servers(world: World) -> None:
    world.will_say("maybe")
    grammar = 'root ::= ("yes" | "no") "!"+'
    body = {"grammar": grammar, "max_tokens": 6}
    answer = await world.openai.chat.completions.create(**ASK, extra_body=body)
    said = answer.choices[0].message.content or ""
    assert said.startswith(("yes!", "no!"))
    assert set(said) <= set("yesno!")


async def test_a_reply_may_be_a_call_where_it_may_call(world: World) -> None:
    """A schema and tools: the call is read as one, and words follow the schema."""
    tool: Any = {"type": "function", "function": {"name": "ls", "parameters": SHAPE}}
    given = {"word": "a", "count": 1}
    world.will_say(f'<tool_call>\n{{"name": "ls", "arguments": {json.dumps(given)}}}\n</tool_call>')
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SHAPE}}
    asked: Any = {**ASK, "tools": [tool], "response_format": form}
    called = (await world.openai.chat.completions.create(**asked)).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments) == given
    words = (await world.openai.chat.completions.create(**asked)).choices[0].message
    jsonschema.validate(json.loads(words.content or ""), SHAPE)


def nested(levels: int) -> Json:
    inner: Json = {"type": "string"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


BAD: dict[str, Json] = {
    "no such type": {"type": "strin"},
    "no such thing": {"$ref": "#/$defs/nobody"},
    "impossible": {"type": "integer", "minimum": 3, "maximum": 2},
    "bad pattern": {"type": "string", "pattern": "("},
    "too long": {"enum": ["x" * schema.LONGEST]},
}
PARAMS = {
    "chat": "response_format.json_schema.schema",
    "responses": "text.format.schema",
    "messages": "output_config.format.schema",
}


@pytest.mark.parametrize("api", APIS)
async def test_a_bad_schema_is_a_400_that_names_the_field(world: World, api: str) -> None:
    """Result: before any header of a stream; nothing has been begun."""
    for (bad, shape), stream in product(BAD.items(), (False, True)):
        body = await refused(world, said_with(world, api, shape, stream=stream))
        assert (body["type"], body["param"]) == ("invalid_request_error", PARAMS[api]), bad
        assert body["message"]
    assert await world.daemon.lifecycle.summaries() == []


@pytest.mark.parametrize("api", APIS)
async def test_a_schema_that_is_nested_too_deep_is_a_400(world: World, api: str) -> None:
    """So is every body: there is no field to name."""
    body = await refused(world, said_with(world, api, nested(schema.DEEPEST + 1)))
    assert "nested" in body["message"]


GRAMMARS = (
    "root ::= (",
    "nobody",
    'root ::= "a" | nobody',
    "root ::= " + "(" * 2000 + '"a"' + ")" * 2000,
    f'root ::= "{"x" * gbnf.LONGEST}"',
)


async def test_a_bad_grammar_is_a_400(world: World) -> None:
    for grammar in GRAMMARS:
        asked = world.openai.chat.completions.create(
            **ASK, stream=True, extra_body={"grammar": grammar}
        )
        body = await refused(world, asked)
        assert (body["type"], body["param"]) == ("invalid_request_error", "grammar"), grammar


Forced = Callable[[World], Any]


def forced_chat(world: World) -> Any:
    tool: Any = {"type": "function", "function": {"name": "ls", "parameters": {"type": "strin"}}}
    return world.openai.chat.completions.create(**ASK, tools=[tool], tool_choice="required")


def forced_response(world: World) -> Any:
    tool: Any = {"type": "function", "name": "ls", "parameters": {"type": "strin"}, "strict": False}
    return world.openai.responses.create(
        model="m", input="Who?", tools=[tool], tool_choice="required"
    )


def forced_message(world: World) -> Any:
    tool: Any = {"name": "ls", "input_schema": {"type": "strin"}}
    return world.claude.messages.create(
        model="m", max_tokens=9, messages=HI, tools=[tool], tool_choice={"type": "any"}
    )


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        (forced_chat, "tools[0].function.parameters"),
        (forced_response, "tools[0].parameters"),
        (forced_message, "tools[0].input_schema"),
    ],
)
async def test_a_tool_that_no_call_can_be_forced_of_is_named(
    world: World, ask: Forced, param: str
) -> None:
    assert (await refused(world, ask(world)))["param"] == param
