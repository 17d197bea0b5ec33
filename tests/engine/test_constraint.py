"""A constrained run draws only what its grammar allows, and touches no other run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.engine.constraint import (
    Constraint,
    Either,
    Form,
    Json,
    Lark,
    Literal,
    Maybe,
    Repeat,
    Row,
    Space,
    Words,
)
from sessiond.engine.core import EngineCore
from sessiond.engine.fake import END, START, FakeModel
from sessiond.engine.masking import Grammars, grammars, prepare
from sessiond.engine.sampling import Sampling
from sessiond.errors import InvalidRequest
from tests.engine.asking import SAMPLINGS, ask, real_core
from tests.engine.cores import Desk, ended, kinds_of, prompt, run_of, tokens_of
from tests.engine.test_engine import running

FIELD = "response_format.json_schema.schema"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def following(schema: object, **more: Any) -> Constraint:
    return Constraint(Json(json.dumps(schema), FIELD, **more))


def reply(form: Form | Lark, said: str | None = None, max_tokens: int = 400) -> str:
    """What a fake run with this constraint says, to its end."""
    desk = Desk(replies=() if said is None else [said])
    run = run_of(0, prompt(4), max_tokens=max_tokens, constraint=Constraint(form))
    end = ended(desk.complete(run))
    assert end.reason == "stop"
    return end.text


def fits(form: Form, text: str, *, special: bool = False) -> bool:
    """Whether a reply may be all of this text."""
    model = FakeModel()
    matcher = Grammars(model).matcher(Constraint(form))
    for token in model.tokenize(text, add_special=False, parse_special=special):
        if not matcher.allowed()[token]:
            return False
        matcher.accept(int(token))
    return bool(matcher.allowed()[END])


def test_a_script_is_said_as_long_as_it_is_allowed() -> None:
    assert reply(Json(json.dumps(PERSON), FIELD), '{"name": "Bo", "age": 7, "tags": []}') == (
        '{"name": "Bo", "age": 7, "tags": []}'
    )


def test_what_a_script_may_not_say_becomes_something_allowed() -> None:
    said = reply(Row((Literal("yes "), Either((Literal("sir"), Literal("madam"))))), "yes miss")
    assert said in ("yes sir", "yes madam")


def test_a_reply_ends_where_nothing_more_may_come_and_not_before() -> None:
    assert reply(Literal("ab"), "a") == "ab", "its script ends too early"
    assert reply(Literal("ab"), "abc") == "ab", "and too late"


@pytest.mark.parametrize(
    ("form", "inside", "outside"),
    [
        (Literal('"\\\n\u00e9\x07/'), ['"\\\n\u00e9\x07/'], ["", '"\\\n']),
        (Words("\n</p>"), ["a <b>\n</p\n</p>", "\n</p>"], ["a", "a\n</p>b\n</p>"]),
        (Row((Maybe(Literal("a")), Literal("b"))), ["ab", "b"], ["a", "aab"]),
        (Row((Literal("x"), Repeat(Literal("a"), 2))), ["x", "xa", "xaa"], ["xaaa", "a"]),
        (Row((Words(">"), Space(), Literal("{"))), [">{", "q>\n\n{"], ["q{", ">" + 9 * " " + "{"]),
        (Row((Literal(""), Literal("a"), Literal(""))), ["a"], [""]),
        (Either((Literal("a"), Literal(""))), ["a", ""], ["b"]),
    ],
)
def test_forms(form: Form, inside: list[str], outside: list[str]) -> None:
    assert [text for text in inside if not fits(form, text)] == []
    assert [text for text in outside if fits(form, text)] == []


def test_a_control_token_stands_for_its_text_and_is_not_spelled() -> None:
    form = Row((Words("<|im_start|>"), Literal("a<|im_start|>b")))
    assert fits(form, "hm<|im_start|>a<|im_start|>b", special=True)
    assert not fits(form, "hm<|im_start|>a<|im_start|>b")
    matcher = grammars(FakeModel()).matcher(Constraint(form))
    assert matcher.allowed()[START] and not matcher.allowed()[END]


def test_an_end_of_generation_may_be_spelled_out() -> None:
    assert reply(Literal("a<|im_end|>"), "abc") == "a"


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":"), (",", ": ")])
def test_json_is_written_on_one_line(separators: tuple[str, str]) -> None:
    value = {"name": "Bo \u00fc \u4f60", "age": 7, "tags": ["a", "b"]}
    text = json.dumps(value, separators=separators, ensure_ascii=False)
    for schema in (PERSON, {"type": "object"}, {}):
        assert fits(Json(json.dumps(schema), FIELD), text)
        assert not fits(Json(json.dumps(schema), FIELD), json.dumps(value, indent=1))


def test_a_lark_grammar_of_its_own() -> None:
    form = Lark('start: "a" B\nB: /[0-9]{2}/\n', "grammar")
    assert re.fullmatch("a[0-9]{2}", reply(form))


values = st.recursive(
    st.one_of(
        st.builds(dict, type=st.sampled_from(["null", "boolean"])),
        st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 5)),
        st.builds(
            lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
            st.integers(-300, 300),
            st.integers(0, 300),
        ),
        st.builds(
            lambda enum: {"enum": enum},
            st.lists(
                st.one_of(st.text(max_size=4), st.integers(-(2**53), 2**53), st.none()), min_size=1
            ),
        ),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda items, least, more: {
                "type": "array",
                "items": items,
                "minItems": least,
                "maxItems": least + more,
            },
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            lambda properties, n: {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:n],
                "additionalProperties": False,
            },
            st.dictionaries(st.text(max_size=4), inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


@settings(max_examples=60)
@given(schema=values, start=st.integers(0, 25))
def test_every_reply_that_ends_follows_its_schema(schema: object, start: int) -> None:
    desk = Desk(n_ctx=1 << 14)
    run = run_of(0, prompt(4, start), max_tokens=600, constraint=following(schema))
    end = ended(desk.complete(run))
    if end.reason == "stop":
        jsonschema.Draft202012Validator(schema).validate(json.loads(end.text))


def test_of_one_of_several_forms_at_least_one_fits() -> None:
    form = Json('{"oneOf": [{"type": "integer"}, {"type": "null"}]}', FIELD)
    assert fits(form, "7") and fits(form, "null") and not fits(form, "true")


HOSTILE = {
    "a reference to nowhere": {"$ref": "#/$defs/x"},
    "a reference to another host": {"$ref": "https://example.com/schema"},
    "a loop": {"$ref": "#"},
    "no such type": {"type": "strin"},
    "no regular expression": {"type": "string", "pattern": "("},
    "a look ahead": {"type": "string", "pattern": "(?=a)"},
    "a keyword that nothing can follow": {"not": {"type": "string"}},
    "nothing": False,
    "a hundred thousand texts": {"enum": [f"v{i}" for i in range(100_000)]},
    "many properties": {"properties": {f"p{i}": {"type": "string"} for i in range(20_000)}},
    "a cross product": {
        "allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(16)]
    },
    "patterns crossed": {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcdefghi"]},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_schema_that_cannot_be_followed_names_its_field(schema: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepare(FakeModel(), following(schema))
    assert caught.value.param == FIELD
    assert "\n" not in caught.value.message and len(caught.value.message) < 300


def test_of_many_schemas_the_bad_one_is_named() -> None:
    good, bad = Json('{"type": "null"}', "tools[0]"), Json('{"type": "nil"}', "tools[1]")
    with pytest.raises(InvalidRequest) as caught:
        prepare(FakeModel(), Constraint(Either((good, Row((Literal("x"), Maybe(bad)))))))
    assert caught.value.param == "tools[1]"


def test_keywords_without_a_grammar_are_ignored_where_that_is_wanted() -> None:
    schema = {"type": "array", "items": {"type": "null"}, "uniqueItems": True, "maxItems": 1}
    prepare(FakeModel(), following(schema, lenient=True))
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        prepare(FakeModel(), following(schema))


def test_a_client_cannot_say_how_its_schema_is_compiled() -> None:
    schema = {"not": {}, "x-guidance": {"lenient": True}}
    with pytest.raises(InvalidRequest):
        prepare(FakeModel(), following(schema))


def test_a_grammar_is_compiled_once() -> None:
    known = Grammars(FakeModel())
    one, other = known.matcher(following(PERSON)), known.matcher(following(PERSON))
    one.accept(ord("{"))
    assert other.allowed()[ord("{")] and not one.allowed()[ord("{")]
    assert len(known._compiled) == 1
    for number in range(70):
        known.matcher(Constraint(Literal(f"n{number}")))
    assert len(known._compiled) == 64


def test_a_bad_grammar_affects_one_run() -> None:
    alone = tokens_of(Desk().complete(run_of(0, prompt(5), max_tokens=20)))
    desk = Desk()
    _, events = desk.start(run_of(0, prompt(5), max_tokens=20))
    _, failed = desk.start(run_of(1, prompt(5, 3), constraint=following({"type": "nil"})))
    _, held = desk.start(run_of(2, prompt(5, 7), constraint=Constraint(Literal("ok"))))
    desk.finish()
    assert kinds_of(failed).endswith("!") and isinstance(failed[-1], InvalidRequest)
    assert failed[-1].status == 400
    assert tokens_of(events) == alone
    assert ended(held).text == "ok"
    assert not any(view.running for view in desk.core.views())


def test_a_grammar_that_fails_in_the_middle_ends_its_run_only() -> None:
    """Rows of the parse grow with every letter until they are more than the limit."""
    inside = " | ".join(f"/a*{'b' * number}/" for number in range(2_100))
    form = Lark(f'start: "go" part+\npart: {inside}\n', "grammar")
    desk = Desk(replies=["go" + "a" * 40, "fine"])
    _, failed = desk.start(run_of(0, prompt(5), max_tokens=60, constraint=Constraint(form)))
    _, events = desk.start(run_of(1, prompt(5, 3), max_tokens=60))
    desk.finish()
    assert isinstance(failed[-1], InvalidRequest)
    assert ended(events).text == "fine"


async def test_the_engine_goes_on_after_a_bad_grammar() -> None:
    async with running() as bed:
        bad = await bed.begin(0, 5, constraint=following({"type": "nil"}))
        good = await bed.begin(1, 5, constraint=Constraint(Literal("ok")))
        with pytest.raises(InvalidRequest):
            await bad.wait()
        assert (await good.wait()).text == "ok"  # type: ignore[union-attr]
        again = await bed.begin(0, 6, constraint=Constraint(Literal("fine")))
        assert (await again.wait()).text == "fine"  # type: ignore[union-attr]


def test_it_goes_on_where_it_was_after_a_suspension() -> None:
    text = '{"name": "Bo", "age": 7, "tags": ["a"]}'
    desk = Desk(replies=[text])
    run = run_of(0, prompt(5), max_tokens=200, constraint=following(PERSON))
    active, events = desk.start(run)
    for _ in range(9):
        desk.core.step()
    assert desk.core.suspend(active)
    desk.core.drop(0)
    desk.core.resume(active, 1)
    desk.finish()
    assert ended(events).text == text


def test_an_end_that_is_to_be_ignored_is_not_once_all_is_said() -> None:
    desk = Desk()
    run = run_of(0, prompt(5), ignore_eos=True, max_tokens=9, constraint=Constraint(Literal("ok")))
    end = ended(desk.complete(run))
    assert (end.reason, end.text) == ("stop", "ok")


def test_logprobs_are_the_models_own() -> None:
    desk = Desk()
    end = desk.complete(run_of(0, prompt(5), logprobs=3, constraint=Constraint(Literal("~"))))
    (detail,) = [each for event in end for each in getattr(event, "logprobs", ())]
    assert detail.chosen.text == "~"
    assert detail.chosen.token not in [top.token for top in detail.top], "it was not likely"


@pytest.fixture(scope="module")
def smol_core(smol_path: Path) -> Iterator[EngineCore]:
    with real_core(smol_path) as core:
        yield core


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_smollm2_follows_the_schema_however_it_is_sampled(
    smol_core: EngineCore, sampling: Sampling
) -> None:
    said = ask(smol_core, "Describe a person.", following(PERSON), sampling)
    jsonschema.validate(json.loads(said), PERSON)
