"""Prompts of real vocabularies: one beginning-of-text token, and no space that nobody wrote."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import pytest

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.llama import LlamaModel, start_backend
from sessiond.engine.memory import Tokens
from sessiond.engine.settings import ContextSettings
from sessiond.sessions.transcript import Chat, Message

NOW = datetime(2025, 11, 29, tzinfo=UTC)
CHAT = Chat((Message("user", "Hi"), Message("assistant", "Hello."), Message("user", "Bye")))
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEXTS = ["user: Hi", " Hi", "\n\nHi", "<end_of_turn>\nHi", "<|im_end|>\nHi", "é", "\ue000", ""]


def vocabulary(path: Path, **extra: object) -> LlamaModel:
    start_backend()
    settings = ContextSettings(path, n_ctx=0, n_seq_max=1, extra=extra)
    return LlamaModel(settings)


def space_before_text() -> Any:
    """The override that makes llama.cpp put a space before text, as Llama 2's vocabulary has it."""
    overrides = (llama.llama_model_kv_override * 2)()
    overrides[0].tag = llama.LLAMA_KV_OVERRIDE_TYPE_BOOL
    overrides[0].key = b"tokenizer.ggml.add_space_prefix"
    overrides[0].value.val_bool = True
    return overrides


@pytest.fixture(scope="module")
def smol(smol_path: Path) -> Iterator[LlamaModel]:
    model = vocabulary(smol_path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> Iterator[LlamaModel]:
    model = vocabulary(gemma_path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def spaced(gemma_path: Path) -> Iterator[LlamaModel]:
    model = vocabulary(gemma_path, kv_overrides=space_before_text())
    yield model
    model.close()


@pytest.fixture(params=["smol", "gemma", "spaced"])
def model(request: pytest.FixtureRequest) -> LlamaModel:
    found: LlamaModel = request.getfixturevalue(request.param)
    return found


def decode(model: LlamaModel, tokens: Tokens) -> str:
    return b"".join(model.piece(int(token), special=True) for token in tokens).decode()


def test_the_spaced_vocabulary_really_adds_a_space(spaced: LlamaModel) -> None:
    tokens = spaced.tokenize("Hi", add_special=False, parse_special=True)
    assert decode(spaced, tokens) == " Hi"


@pytest.mark.parametrize("text", TEXTS)
def test_a_continuation_gains_no_space_at_its_start(model: LlamaModel, text: str) -> None:
    tokens = TemplateRenderer(model, None).text(text, first=False)
    # llama.cpp puts a space after special tokens too; only the start is the renderer's business.
    start = text.split("\n")[0]
    assert decode(model, tokens).startswith(start)
    assert len(decode(model, tokens)) - len(text) in (0, text.count(">\n") + text.count("\n\n"))


def test_a_suffix_gains_no_space_at_its_start(model: LlamaModel) -> None:
    tokens = TemplateRenderer(
        model, ChatTemplate("{% for m in messages %}{{ m.content }}X{% endfor %}")
    )
    suffix = tokens.suffix(CHAT, 2, NOW)
    assert suffix is not None
    assert decode(model, suffix) == "XByeX"


@pytest.mark.parametrize("source", ["{{ bos_token }}" + PLAIN, PLAIN])
def test_there_is_one_beginning_of_text(gemma: LlamaModel, source: str) -> None:
    tokens = TemplateRenderer(gemma, ChatTemplate(source)).full(CHAT, NOW)
    assert decode(gemma, tokens) == "<bos>user: Hi\nassistant: Hello.\nuser: Bye\n"


def test_a_model_that_adds_none_gets_none(smol: LlamaModel) -> None:
    tokens = TemplateRenderer(smol, ChatTemplate(PLAIN)).full(CHAT, NOW)
    assert decode(smol, tokens) == "user: Hi\nassistant: Hello.\nuser: Bye\n"


def test_a_continuation_gets_no_beginning_of_text(gemma: LlamaModel) -> None:
    assert decode(gemma, TemplateRenderer(gemma, None).text("Hi", first=False)) == "Hi"
    assert decode(gemma, TemplateRenderer(gemma, None).text("Hi", first=True)) == "<bos>Hi"


def test_gemma_goes_on_from_its_own_reply(gemma: LlamaModel, gemma_template: Path) -> None:
    renderer = TemplateRenderer(gemma, ChatTemplate(gemma_template.read_text()))
    asked = renderer.full(Chat(CHAT.messages[:1]), NOW)
    reply = gemma.tokenize("Hello.", add_special=False, parse_special=False)
    suffix = renderer.suffix(CHAT, 2, NOW)
    assert suffix is not None
    joined = [*asked, *reply, *suffix]
    assert joined == renderer.full(CHAT, NOW).tolist()


def test_smol_goes_on_from_its_own_reply(smol: LlamaModel) -> None:
    renderer = TemplateRenderer(smol, ChatTemplate(smol.info.chat_template or ""))
    asked = renderer.full(Chat(CHAT.messages[:1]), NOW)
    reply = smol.tokenize("Hello.", add_special=False, parse_special=False)
    suffix = renderer.suffix(CHAT, 2, NOW)
    assert suffix is not None
    assert [*asked, *reply, *suffix] == renderer.full(CHAT, NOW).tolist()
