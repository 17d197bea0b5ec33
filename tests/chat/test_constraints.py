"""What a reply must look like: schemas, forced calls, reasoning before them, for every family."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.chat.constraints import Thinking, constraint, thinking_of
from sessiond.chat.gbnf import gbnf
from sessiond.chat.schema import DEEPEST, LONGEST, checked
from sessiond.engine.core import SPARES, EngineCore
from sessiond.engine.events import Ended
from sessiond.engine.fake import END, FakeContext, FakeModel
from sessiond.engine.masking import grammars, prepare
from sessiond.engine.memory import as_tokens
from sessiond.engine.run import Run
from sessiond.engine.sampling import Ending, Sampling
from sessiond.errors import InvalidRequest
from sessiond.sessions.calls.formats import FORMATS, format_named, take_calls
from sessiond.sessions.calls.spelling import JsonCall, Spelling
from sessiond.sessions.turn import ToolChoice
from tests.engine.asking import SAMPLINGS, ask, real_core

MODEL = FakeModel()
FIELD = "response_format.json_schema.schema"
REQUIRED, ONE = ToolChoice("required"), ToolChoice("required", parallel=False)
JSON = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
DAYS: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "unit": {"$ref": "#/$defs/unit"},
        "at": {"type": "array", "items": {"type": "null"}, "maxItems": 2},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}


def tool(name: str, parameters: object) -> str:
    return json.dumps({"type": "function", "function": {"name": name, "parameters": parameters}})


TOOLS = (tool("wait", DAYS), tool("get.weather", CITY))
HERMES, CODER = format_named("hermes").spelling, format_named("qwen_coder").spelling


def fits(text: str, **wanted: Any) -> bool:
    """Whether a reply may be all of this text; control tokens are none of it."""
    given: dict[str, Any] = {"choice": ToolChoice(), "tools": (), "schema": None, "spelling": None}
    made = constraint(**given | wanted)
    assert made is not None
    matcher = grammars(MODEL).matcher(made)
    for byte in text.encode():
        if not matcher.allowed()[byte]:
            return False
        matcher.accept(byte)
    return bool(matcher.allowed()[END])


def say(seed: int, **wanted: Any) -> str | None:
    """What a fake model says; None where it did not come to an end."""
    given: dict[str, Any] = {"choice": ToolChoice(), "tools": (), "schema": None, "spelling": None}
    core = EngineCore(MODEL, FakeContext(MODEL, n_seq_max=1 + SPARES))
    events: list[Any] = []
    line = as_tokens([97 + seed % 26, 97 + seed // 26 % 26])
    ending, limited = Sampling(temperature=0), Ending(max_tokens=900)
    run = Run(0, line, 0, 1 << 16, ending, limited, constraint=constraint(**given | wanted))
    core.start(run, events.append)
    while core.busy:
        core.step()
    end = events[-1]
    assert isinstance(end, Ended)
    return end.text if end.reason == "stop" else None


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_who_wants_nothing_is_not_constrained(mode: Any) -> None:
    assert constraint(ToolChoice(mode), TOOLS, None, HERMES) is None


def test_a_schema_is_all_of_the_reply() -> None:
    assert fits('{"ok": true}', schema=JSON)
    assert not fits('Sure: {"ok": true}', schema=JSON)
    assert not fits('{"ok": true}\n', schema=JSON)
    assert not fits('{"ok": 1}', schema=JSON)


def test_with_a_schema_tools_may_still_be_called_if_the_client_allows_it() -> None:
    call = '<tool_call>\n{"name": "wait", "arguments": {"days": 3}}\n</tool_call>'
    with_tools = {"schema": JSON, "tools": TOOLS, "spelling": HERMES}
    assert fits(call, **with_tools) and fits('{"ok": true}', **with_tools)
    assert not fits(call, **with_tools, choice=ToolChoice("none"))
    assert not fits('{"ok": true}', **with_tools, choice=REQUIRED)


def test_a_reply_and_calls_that_begin_alike_are_both_possible() -> None:
    named = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "parameters": {"type": "null"}},
        "required": ["name"],
    }
    wanted = {
        "schema": json.dumps(named),
        "tools": TOOLS,
        "spelling": format_named("llama").spelling,
    }
    assert fits('{"name": "wait", "parameters": {"days": 3}}', **wanted)
    assert fits('{"name": "wait", "parameters": null}', **wanted)
    assert fits('{"name": "Bo"}', **wanted) and fits('{"name":"Bo"}', **wanted)


@pytest.mark.parametrize(
    ("thinking", "inside", "outside"),
    [
        (Thinking(opened=True), ["hm</think>\n\n{}", "</think>{}"], ["{}", "<think>a</think>{}a"]),
        (Thinking(possible=True), ["{}", "<think>\nhm\n</think>\n{}"], ["hm</think>{}", "hm{}"]),
        (Thinking(), ["{}"], ["<think></think>{}"]),
        (Thinking(answer="final:"), ["final:{}"], ["{}"]),
    ],
)
def test_reasoning_comes_first(thinking: Thinking, inside: list[str], outside: list[str]) -> None:
    schema = '{"type": "object"}'
    assert [text for text in inside if not fits(text, schema=schema, thinking=thinking)] == []
    assert [text for text in outside if fits(text, schema=schema, thinking=thinking)] == []


@pytest.mark.parametrize(
    ("prompt", "template", "thinking"),
    [
        ("…assistant\n<think>\n", "<think></think>", Thinking(opened=True)),
        ("…assistant\n", "{{ '</think>' }}", Thinking(possible=True)),
        ("…assistant\n<think>\n\n</think>\n\n", "</think>", Thinking()),
        ("…assistant\n", "no reasoning", Thinking()),
        ("…[THINK]", "", Thinking(opened=True, end="[/THINK]")),
    ],
)
def test_where_reasoning_may_stand(prompt: str, template: str, thinking: Thinking) -> None:
    assert thinking_of("hermes", template, prompt) == thinking


def test_harmony_answers_on_a_channel() -> None:
    thinking = thinking_of("harmony", "", "<|start|>assistant")
    final = '<|channel|>final<|message|>{"ok": true}'
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    assert fits(final, schema=JSON, thinking=thinking)
    assert fits(thought + final, schema=JSON, thinking=thinking)
    assert not fits('{"ok": true}', schema=JSON, thinking=thinking)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("choice", [REQUIRED, ONE, ToolChoice("required", "get.weather")])
def test_a_forced_call_is_one_that_its_family_reads(name: str, choice: ToolChoice) -> None:
    form = format_named(name)
    schemas = {"wait": DAYS, "get.weather": CITY}
    ended = 0
    for seed in range(4):
        text = say(seed, choice=choice, tools=TOOLS, spelling=form.spelling)
        if text is None:
            continue
        ended += 1
        rest, calls = take_calls(text)
        assert rest.strip() == "" and calls
        assert len(calls) == 1 or (choice is REQUIRED and form.spelling.many)
        for call in calls:
            assert choice.name in (None, call.name)
            if call.typed:
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert ended


def test_several_calls_stand_as_their_family_writes_them() -> None:
    one = '<tool_call>\n{"name": "wait", "arguments": {"days": 3}}\n</tool_call>'
    wanted = {"tools": TOOLS, "spelling": HERMES}
    assert fits(f"{one}\n{one}", choice=REQUIRED, **wanted)
    assert not fits(f"{one}\n{one}", choice=ONE, **wanted)
    assert not fits(f"{one}\n{one}", choice=ToolChoice("required", "wait"), **wanted)
    assert not fits(one, choice=ToolChoice("required", "get.weather"), **wanted)
    single = Spelling(HERMES.call, between="\n", many=False)
    assert not fits(f"{one}\n{one}", choice=REQUIRED, tools=TOOLS, spelling=single)


def coder(*parameters: tuple[str, str]) -> str:
    inside = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters)
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "string"}, ['a "b" <c>\n\n{', ""], []),
        ({"type": ["string", "null"]}, ["null", "x"], []),
        ({}, ["anything"], []),
        ({"type": "integer"}, ["-12"], ["twelve", '"1"', ""]),
        ({"type": "object"}, ['{"a": [1]}'], ["a"]),
        ({"enum": ["a", "b\n"]}, ["a", "b\n"], ["c", '"a"']),
        ({"enum": [1, None]}, ["1", "null"], ["2"]),
        ({"const": "x"}, ["x"], ["y"]),
        ({"$ref": "#/$defs/text"}, ["as it is"], []),
        ({"$ref": "#/$defs/number"}, ["1.5"], ["as it is"]),
        ({"$ref": "#/$defs/way"}, ["up"], ['"up"', "left"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["x"]),
        ({"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]}, ["x", "null"], []),
    ],
)
def test_parameters_between_tags(
    schema: dict[str, Any], inside: list[str], outside: list[str]
) -> None:
    definitions = {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "way": {"enum": ["up", "down"]},
    }
    parameters = {"properties": {"p": schema}, "required": ["p"], "$defs": definitions}
    wanted = {"choice": REQUIRED, "tools": (tool("f", parameters),), "spelling": CODER}
    assert [text for text in inside if not fits(coder(("p", text)), **wanted)] == []
    assert [text for text in outside if fits(coder(("p", text)), **wanted)] == []


@pytest.mark.parametrize("family", ["hermes", "llama", "mistral_list", "qwen_coder"])
@pytest.mark.parametrize("more", [{}, {"$id": "https://example.org/f"}])
def test_references_lead_into_the_tools_own_parameters(family: str, more: dict[str, str]) -> None:
    """To the root of them, as of a tree, and to another property."""
    parameters = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "m": {"$ref": "#/properties/n"},
        },
        "required": ["n", "child", "m"],
        "additionalProperties": False,
    } | more
    spelling = format_named(family).spelling
    wanted = {"choice": REQUIRED, "tools": (tool("f", parameters),), "spelling": spelling}

    def called(child: object, m: object) -> str:
        if family == "qwen_coder":
            return coder(("n", "1"), ("child", json.dumps(child)), ("m", json.dumps(m)))
        arguments = json.dumps({"n": 1, "child": child, "m": m})
        call = spelling.call
        assert isinstance(call, JsonCall)
        return f"{spelling.start}{call.begin('f')}{arguments}{call.after}{spelling.end}"

    inner = {"n": 2, "child": None, "m": 3}
    assert fits(called(inner, 3), **wanted)
    assert fits(called(None, 3), **wanted)
    assert not fits(called({"name": "f", "arguments": inner}, 3), **wanted)
    assert not fits(called({"n": 2}, 3), **wanted)
    assert not fits(called(None, "x"), **wanted)


def test_parameters_that_are_not_required_may_be_left_out() -> None:
    number = {"type": "integer"}
    parameters = {"properties": {"a": number, "b": number, "c": number}, "required": ["b"]}
    wanted = {"choice": REQUIRED, "tools": (tool("f", parameters),), "spelling": CODER}
    for names, allowed in [("b", 1), ("ab", 1), ("abc", 1), ("a", 0), ("ba", 0), ("bb", 0)]:
        assert fits(coder(*((name, "1") for name in names)), **wanted) == bool(allowed)


@pytest.mark.parametrize("parameters", [None, {}, {"properties": {}}, {"$schema": "x"}])
def test_a_tool_without_parameters_is_called_with_an_object(parameters: object) -> None:
    wanted = {"choice": REQUIRED, "tools": (tool("f", parameters),), "spelling": HERMES}
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    assert fits(call % "{}", **wanted) and not fits(call % "[]", **wanted)


def test_what_no_grammar_can_say_of_a_tool_is_left_to_it() -> None:
    odd = {"type": "object", "properties": {"u": {"type": "string", "format": "git-ref"}}}
    wanted = constraint(REQUIRED, (tool("f", odd | {"not": {"required": ["x"]}}),), None, HERMES)
    assert wanted is not None
    prepare(MODEL, wanted)


@pytest.mark.parametrize(
    ("choice", "tools", "spelling"),
    [
        (REQUIRED, (), HERMES),
        (REQUIRED, TOOLS, None),
        (ToolChoice("required", "nobody"), TOOLS, HERMES),
    ],
)
def test_a_call_that_nobody_can_make_is_refused(
    choice: ToolChoice, tools: tuple[str, ...], spelling: Spelling | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        constraint(choice, tools, None, spelling)
    assert caught.value.param == "tool_choice"


def test_the_tool_at_fault_is_named() -> None:
    made = constraint(REQUIRED, (*TOOLS, tool("f", {"type": "nil"})), None, HERMES)
    assert made is not None
    with pytest.raises(InvalidRequest) as caught:
        prepare(MODEL, made)
    assert caught.value.param == "tools[2].function.parameters"
    with pytest.raises(InvalidRequest) as caught:
        constraint(REQUIRED, (*TOOLS, tool("f", ["a"])), None, HERMES)
    assert caught.value.param == "tools[2].function.parameters"


def nested(depth: int) -> str:
    return '{"items":' * depth + "true" + "}" * depth


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "[]",
        '"a"',
        "{",
        '{"minimum": NaN}',
        '{"minimum": -Infinity}',
        nested(DEEPEST + 1),
        nested(100_000)[:LONGEST],
        nested(20_000),
        json.dumps({"description": "x" * LONGEST}),
        '{"multipleOf": 999983}',
        '{"multipleOf": 1.0000001}',
        '{"multipleOf": 1e-300, "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}',
        json.dumps({"anyOf": [{"multipleOf": 9973, "minimum": i} for i in range(100)]}),
        '{"multipleOf": 123456789012345678901234567890123}',
    ],
    ids=lambda schema: schema[:30],
)
def test_what_would_take_for_ever_is_refused_at_once(schema: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(schema, "field")
    assert caught.value.param == "field" and len(caught.value.message) < 200
    with pytest.raises(InvalidRequest) as caught:
        constraint(ToolChoice(), (), schema, None)
    assert caught.value.param == FIELD


@pytest.mark.parametrize("multiple", [1, 0.01, 0.5, 5, 100, 1e6, 12.5, 360, 0, -3, True])
def test_multiples_people_use_are_fine(multiple: float) -> None:
    checked(json.dumps({"type": "number", "multipleOf": multiple}), "field")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["multipleOf", "allOf", "$ref", "enum"]), inner)
    ),
    max_leaves=8,
)


@given(json_values.map(json.dumps) | st.text(max_size=40))
def test_any_text_is_checked_or_refused(text: str) -> None:
    try:
        assert isinstance(checked(text, "field"), dict | bool)
    except InvalidRequest as error:
        assert error.param == "field"


def test_deep_schemas_up_to_the_limit_compile() -> None:
    made = constraint(ToolChoice(), (), nested(DEEPEST - 1), None)
    assert made is not None
    prepare(MODEL, made)


def test_calls_end_some_time() -> None:
    """A model that would call for ever comes to an end."""
    text = say(
        3,
        choice=REQUIRED,
        tools=(tool("f", {"additionalProperties": False}),),
        spelling=Spelling(HERMES.call, between=";"),
    )
    assert text is None or len(re.findall("</tool_call>", text)) <= 32


@pytest.fixture(scope="module")
def smol_core(smol_path: Path) -> Iterator[EngineCore]:
    with real_core(smol_path) as core:
        yield core


@pytest.mark.parametrize("sampling", SAMPLINGS[::2])
def test_smollm2_calls_the_tool_it_must_call(smol_core: EngineCore, sampling: Sampling) -> None:
    made = constraint(ToolChoice("required", "get.weather"), TOOLS, None, HERMES)
    assert made is not None
    rest, (call,) = take_calls(ask(smol_core, "Is it warm in Rome?", made, sampling))
    assert (rest, call.name) == ("", "get.weather")
    jsonschema.validate(json.loads(call.arguments), CITY)


JSON_GRAMMAR = r"""
root ::= object
value ::= object | string | number | ("true" | "false" | "null")
object ::= "{" (string ":" value ("," string ":" value)*)? "}"
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" ["\\bfnrt])* "\""
number ::= "-"? [0-9]{1,15} ("." [0-9]+)?
"""


def test_a_gbnf_grammar_constrains_too() -> None:
    matching = gbnf(JSON_GRAMMAR)
    for text, fitting in [('{"a":{"b\\n":-1.5,"c":null}}', True), ("{}", True), ("[]", False)]:
        matcher = grammars(MODEL).matcher(matching)
        taken = 0
        for byte in text.encode():
            if not matcher.allowed()[byte]:
                break
            matcher.accept(byte)
            taken += 1
        assert (taken == len(text) and bool(matcher.allowed()[END])) is fitting


@pytest.mark.parametrize(
    "text",
    [
        "",
        'x ::= "a"',
        "root ::= x",
        'root ::= "a',
        "root ::= " + "(" * 4000,
        'root ::= "a" ' * 1000,
        "root ::= root",
    ],
    ids=lambda text: text[:20],
)
def test_a_grammar_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepare(MODEL, gbnf(text))
    assert caught.value.param == "grammar" and len(caught.value.message) < 300
