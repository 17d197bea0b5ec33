"""What requests of any API ask of the chat template becomes one set of options."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.template_options import OPTIONS, OPTIONS_BYTES, RESERVED, template_options
from sessiond.errors import InvalidRequest


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        ({"chat_template_kwargs": None, "enable_thinking": None, "reasoning": None}, {}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        (
            {"reasoning_effort": "none"},
            {"reasoning_effort": "none", "enable_thinking": False},
        ),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": True}, {}),
        ({"chat_template_kwargs": {"a": [1, {"b": None}]}}, {"a": [1, {"b": None}]}),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
            {"enable_thinking": True},
        ),
        (
            {"reasoning_effort": "low", "reasoning": {"effort": "high"}},
            {"reasoning_effort": "low"},
        ),
        (
            {"enable_thinking": True, "reasoning_effort": "none"},
            {"enable_thinking": True, "reasoning_effort": "none"},
        ),
    ],
)
def test_each_way_to_say_it(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert template_options(body) == options


def test_a_request_wins_over_its_preset() -> None:
    preset = {"enable_thinking": False, "chat_template_kwargs": {"style": "long", "depth": 1}}
    body = {"reasoning_effort": "low", "chat_template_kwargs": {"depth": 2}}
    assert template_options(body, preset) == {
        "enable_thinking": False,
        "style": "long",
        "depth": 2,
        "reasoning_effort": "low",
    }
    assert template_options({"enable_thinking": True}, preset)["enable_thinking"] is True
    assert template_options({"reasoning_effort": "none"}, {"enable_thinking": True}) == {
        "enable_thinking": False,
        "reasoning_effort": "none",
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *[
            ({"chat_template_kwargs": {name: 1}}, f"chat_template_kwargs.{name}")
            for name in sorted(RESERVED)
        ],
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a-b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a" * 65: 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * OPTIONS_BYTES}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": 1 << 80}}, "chat_template_kwargs"),
        (
            {"chat_template_kwargs": {f"a{n}": 1 for n in range(OPTIONS + 1)}},
            "chat_template_kwargs",
        ),
        ({"enable_thinking": "yes"}, "enable_thinking"),
        ({"enable_thinking": 1}, "enable_thinking"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning_effort": "very much"}, "reasoning_effort"),
        ({"reasoning_effort": ""}, "reasoning_effort"),
        ({"reasoning_effort": "x" * 33}, "reasoning_effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": {}}}, "reasoning.effort"),
    ],
)
def test_what_cannot_be_is_refused_by_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        template_options(body)
    assert refusal.value.param == param


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["chat_template_kwargs", "enable_thinking", "reasoning_effort", "reasoning", "thinking"]
)


@given(st.dictionaries(FIELDS, VALUES), st.dictionaries(FIELDS, VALUES))
def test_any_body_gives_options_or_a_refusal(body: dict[str, Any], preset: dict[str, Any]) -> None:
    try:
        options = template_options(body, preset)
    except InvalidRequest as refusal:
        assert refusal.param
    else:
        assert not RESERVED & options.keys()
        assert options.items() >= template_options(body).items()
