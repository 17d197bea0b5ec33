"""llama-server's helpers: text to tokens and back, messages to a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.routing import ApiConfig
from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.config.presets import Preset
from sessiond.engine.fake import FakeModel
from sessiond.errors import InvalidRequest
from sessiond.sessions.text import LONG, Served, Vocabulary
from tests.api.scripted import ScriptedTurns
from tests.api.serving import served

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
PROMPT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\n"
)
OPTIONS = "{{ enable_thinking }} {{ style }} {{ reasoning_effort }} {{ tools | length }}"


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("below", ["", "/s/work"])
def test_there_and_back(client: httpx.Client, turns: ScriptedTurns, below: str) -> None:
    told = post(client, f"{below}/tokenize", content="Grüße<|im_end|>")
    assert told["tokens"][:2] == [ord("G"), ord("r")]
    assert len(told["tokens"]) == len("Grüße".encode()) + 1
    assert post(client, f"{below}/detokenize", **told) == {"content": "Grüße<|im_end|>"}


def test_control_tokens_are_text_if_that_is_asked_for(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    told = post(client, "/tokenize", content="<|im_end|>", parse_special=False)
    assert len(told["tokens"]) == len("<|im_end|>")


def test_pieces_are_text_or_the_bytes_of_a_part_of_a_character(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    told = post(client, "/tokenize", content="aß<|im_end|>", with_pieces=True)["tokens"]
    pieces = [one["piece"] for one in told]
    assert pieces == ["a", [0xC3], [0x9F], "<|im_end|>"]
    assert [one["id"] for one in told[:3]] == [ord("a"), 0xC3, 0x9F]


def test_what_is_long_is_worked_through_all_the_same(
    client: httpx.Client, turns: ScriptedTurns
) -> None:
    content = "ab" * LONG
    told = post(client, "/tokenize", content=content)
    assert post(client, "/detokenize", **told)["content"] == content
    asked = [{"role": "user", "content": content}]
    assert content in post(client, "/apply-template", messages=asked)["prompt"]


def test_a_prompt_is_what_a_chat_would_be_given(client: httpx.Client, turns: ScriptedTurns) -> None:
    assert post(client, "/apply-template", messages=MESSAGES) == {"prompt": PROMPT}
    assert turns.requests == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 3}, "content"),
        ("/tokenize", {"content": ["a", 1]}, "content"),
        ("/tokenize", {"content": "a", "add_special": "yes"}, "add_special"),
        ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, True]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 2**31]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 2, 100_000]}, "tokens[2]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            "/apply-template",
            {"messages": MESSAGES, "chat_template_kwargs": {"bos_token": "x"}},
            "chat_template_kwargs.bos_token",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field(
    client: httpx.Client, turns: ScriptedTurns, path: str, body: Any, param: str
) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def vocabulary(template: str = "{{ messages }}") -> Vocabulary:
    model = FakeModel()
    renderer = TemplateRenderer(model, ChatTemplate(template))
    return Vocabulary(model, renderer, Served("m", "", template, 1, 1))


class Optioned(ScriptedTurns):
    async def vocabulary(self) -> Vocabulary:
        return vocabulary(OPTIONS)


@pytest.fixture(scope="module")
def optioned() -> Iterator[httpx.Client]:
    told = Preset(enable_thinking=False, chat_template_kwargs={"style": "long"})
    with served(Optioned(), ApiConfig(presets={"fast": told})) as url:
        with httpx.Client(base_url=url, timeout=10) as client:
            yield client


def test_the_presets_and_the_requests_options_reach_the_template(optioned: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]

    def prompt(**body: Any) -> str:
        return str(
            post(optioned, "/apply-template", messages=MESSAGES, tools=tools, **body)["prompt"]
        )

    assert prompt(model="fast") == "False long  1"
    assert prompt(model="fast", enable_thinking=True, reasoning_effort="low") == "True long low 1"
    assert prompt(chat_template_kwargs={"style": "short"}) == " short  1"


def test_a_template_that_fails_is_the_requests_fault() -> None:
    with served(Failing()) as url:
        answer = httpx.post(f"{url}/apply-template", json={"messages": MESSAGES})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "chat_template_failed")


class Failing(ScriptedTurns):
    async def vocabulary(self) -> Vocabulary:
        return vocabulary("{{ raise_exception('no system prompt, please') }}")


@given(st.text(), st.booleans())
async def test_any_text_comes_back(text: str, special: bool) -> None:
    known = vocabulary()
    tokens = await known.tokens(text, add_special=False, parse_special=special)
    assert await known.text(tokens) == text
    assert b"".join(map(known.piece, tokens)) == text.encode()


@given(st.lists(st.integers(-5, 400), max_size=30))
async def test_any_tokens_are_text_or_a_refusal(tokens: list[int]) -> None:
    known = vocabulary()
    try:
        text = await known.text(tokens)
    except InvalidRequest as refusal:
        first = next(n for n, t in enumerate(tokens) if not 0 <= t < known.model.info.n_vocab)
        assert refusal.param == f"tokens[{first}]"
    else:
        text.encode()
