"""Which family a template is of, and what tools say of their arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sessiond.chat.reply.tools import Tools
from sessiond.errors import ConfigError
from sessiond.sessions.calls.formats import FORMATS, GENERIC, format_named, format_of
from sessiond.sessions.calls.tags import opened_by


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "generic"),
        ("", "generic"),
        ("{{ tools }} no marks", "generic"),
        ("<start_of_turn> and not a word of them", "generic"),
        ("{{ tools }}<tool_call>{...}", "hermes"),
        ("{{ tools }}<tool_call><function=", "qwen_coder"),
        ("{{ tools }}<|start_header_id|>", "llama"),
        ("{{ tools }}[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral_list"),
        ("{{ tools }}[AVAILABLE_TOOLS][TOOL_CALLS]x[ARGS]", "mistral"),
        ("{{ tools }}<start_of_turn>", "gemma"),
        ("{{ tools }}<start_of_turn><start_function_call>", "functiongemma"),
        ("{{ tools }}<|tool_call><|channel>", "gemma4"),
        ("{{ tools }}<|start|><|channel|>", "harmony"),
    ],
)
def test_a_template_is_known_by_its_marks(template: str | None, name: str) -> None:
    assert format_of(template).name == name


def test_families_have_names() -> None:
    assert all(format_named(name) is form for name, form in FORMATS.items())
    with pytest.raises(ConfigError) as refused:
        format_named("hermès")
    assert all(name in refused.value.hint for name in FORMATS)


def test_all_ways_are_known_to_the_one_that_knows_all() -> None:
    for form in FORMATS.values():
        assert set(form.ways) <= set(GENERIC.ways)
        assert set(form.control) <= set(GENERIC.control)


@pytest.mark.parametrize(
    ("ends", "opens"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("[/INST][THINK]", "[THINK]"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>"),
        ("<think>\n\n</think>\n\n", None),
        ("<|im_start|>assistant\n", None),
        ("", None),
    ],
)
def test_a_prompt_may_end_inside_reasoning(ends: str, opens: str | None) -> None:
    tag = opened_by(ends)
    assert (tag and tag.opens) == opens


PARAMETERS = {
    "$defs": {"count": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
    "properties": {
        "text": {"type": "string"},
        "count": {"$ref": "#/$defs/count"},
        "ratio": {"type": "number"},
        "on": {"type": ["boolean", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "some": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        "list": {"type": "array"},
        "map": {"type": "object"},
        "level": {"enum": [1, 2]},
        "any": {},
        "loop": {"$ref": "#/$defs/loop"},
    },
}
VALUES: list[tuple[str, str, Any]] = [
    ("text", "3", "3"),
    ("text", "null", "null"),
    ("count", "3", 3),
    ("count", " 3\n", 3),
    ("count", "3.5", "3.5"),
    ("count", "3.0", 3.0),
    ("count", "three", "three"),
    ("count", "true", "true"),
    ("count", "007", "007"),
    ("ratio", "3", 3),
    ("ratio", "-1.5e3", -1500.0),
    ("ratio", "NaN", "NaN"),
    ("ratio", "1e999", "1e999"),
    ("on", "true", True),
    ("on", "False", False),
    ("on", "None", None),
    ("on", "null", None),
    ("on", "maybe", "maybe"),
    ("either", "3", "3"),
    ("some", "3", 3),
    ("some", "null", None),
    ("list", "[1, {}]", [1, {}]),
    ("list", "[1", "[1"),
    ("map", '{"a": "b"}', {"a": "b"}),
    ("map", "[" * 100_000, "[" * 100_000),
    ("level", "2", 2),
    ("any", "3", "3"),
    ("other", "3", "3"),
    ("loop", "3", "3"),
]


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(("name", "text", "value"), VALUES)
def test_text_becomes_what_the_schema_wants(
    name: str, text: str, value: object, wrapped: bool
) -> None:
    function = {"name": "f", "parameters": PARAMETERS}
    definition = {"type": "function", "function": function} if wrapped else function
    typed = Tools([json.dumps(definition)]).typed("f", json.dumps({name: text}))
    assert json.loads(typed) == {name: value}
    assert type(json.loads(typed)[name]) is type(value)


@pytest.mark.parametrize(
    "definition", ["", "[]", "{}", '{"name": 1}', '{"function": 1}', '{"name": "f"}']
)
def test_a_definition_that_says_nothing_is_no_error(definition: str) -> None:
    assert Tools([definition]).typed("f", '{"a": "1"}') == '{"a": "1"}'
