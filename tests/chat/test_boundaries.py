"""A boundary is what a prompt keeps when a message is replaced: never more, and hardly less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.context import Model
from sessiond.engine.fake import FakeModel
from sessiond.engine.llama import LlamaModel, start_backend
from sessiond.engine.memory import Tokens, as_tokens, common_prefix
from sessiond.engine.settings import ContextSettings
from sessiond.sessions.prompt import Boundaries
from sessiond.sessions.transcript import Chat, Message, ToolCall, canonical_arguments, read_tool
from tests.chat import test_vocabulary as vocabularies
from tests.models import GEMMA_TEMPLATE

TEMPLATES = Path(__file__).parent.parent / "templates"
NOW = datetime(2025, 11, 29, 10, 2, tzinfo=UTC)
FAMILIES = ["chatml", "llama3", "mistral", "mistral_tools", "qwen", "gemma"]
WITH_TOOLS = {"chatml", "llama3", "mistral_tools", "qwen"}
TOOL = read_tool({"type": "function", "function": {"name": "ls", "parameters": {}}})
SLACK = 4
"""Tokens: a beginning that changes those before it may cost so many."""
EXAMPLES = 12

words = st.text(st.sampled_from("abc xyzäß\n.<>|{}1世'"), max_size=12)


@dataclass(frozen=True)
class Vocabulary:
    model: Model
    families: dict[str, TemplateRenderer] = field(default_factory=dict)

    def renderer(self, source: str) -> TemplateRenderer:
        return TemplateRenderer(self.model, ChatTemplate(source))

    def family(self, name: str) -> TemplateRenderer:
        if name not in self.families:
            self.families[name] = self.renderer((TEMPLATES / f"{name}.jinja").read_text())
        return self.families[name]

    def raw(self, text: str) -> Tokens:
        return self.model.tokenize(text, add_special=False, parse_special=False)


def load(path: Path, **extra: object) -> LlamaModel:
    start_backend()
    return LlamaModel(ContextSettings(path, n_ctx=0, n_seq_max=1, extra=extra))


@pytest.fixture(scope="module")
def smol(smol_path: Path) -> Iterator[Vocabulary]:
    model = load(smol_path)
    yield Vocabulary(model)
    model.close()


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> Iterator[Vocabulary]:
    model = load(gemma_path)
    yield Vocabulary(model)
    model.close()


@pytest.fixture(scope="module")
def spaced(gemma_path: Path) -> Iterator[Vocabulary]:
    model = load(gemma_path, kv_overrides=vocabularies.space_before_text())
    yield Vocabulary(model)
    model.close()


@pytest.fixture(scope="module")
def by_bytes() -> Vocabulary:
    return Vocabulary(FakeModel())


@pytest.fixture(scope="module", params=["by_bytes", "smol"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    found: Vocabulary = request.getfixturevalue(request.param)
    return found


def tool_round(draw: st.DrawFn) -> list[Message]:
    call = ToolCall("c1", "ls", canonical_arguments({"path": draw(words)}))
    return [
        Message("assistant", draw(words), tool_calls=(call,), reasoning=draw(st.none() | words)),
        Message("tool", draw(words), tool_call_id="c1"),
    ]


@st.composite
def chats(draw: st.DrawFn, family: str) -> Chat:
    """A request: alternating messages, the last of them the user's; tools where they are known."""
    messages = [Message("system", draw(words))] if draw(st.booleans()) else []
    with_tools = family in WITH_TOOLS and draw(st.booleans())
    for _ in range(draw(st.integers(0, 5))):
        messages.append(Message("user", draw(words)))
        if with_tools and draw(st.booleans()):
            messages += tool_round(draw)
        messages.append(Message("assistant", f"r{draw(words)}", reasoning=draw(st.none() | words)))
    return Chat((*messages, Message("user", draw(words))), (TOOL,) if with_tools else ())


def users_of(chat: Chat, first: int = 0) -> list[int]:
    return [i for i, m in enumerate(chat.messages) if m.role == "user" and i >= first]


def edit(chat: Chat, at: int, text: str) -> Chat:
    return replace(chat, messages=(*chat.messages[:at], Message("user", text)))


def unlike(message: Message) -> tuple[str, ...]:
    """Texts of which at least one begins as no text like the message does."""
    return ("\ue001", "Q", "\n", " ", *([] if message.content else ["x"]))


def check(prompt: Tokens, boundary: int, edited: Sequence[Tokens], apart: Sequence[Tokens]) -> None:
    """No more than is shared with any of `edited`, and about what is shared with `apart`."""
    for one in (*edited, *apart):
        assert boundary <= common_prefix(prompt, one)
    least = min(common_prefix(prompt, one) for one in apart)
    assert least - boundary <= SLACK


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_an_edit_of_a_message_keeps_what_is_before_it(
    vocabulary: Vocabulary, family: str, data: st.DataObject
) -> None:
    renderer, chat = vocabulary.family(family), data.draw(chats(family))
    prompt = renderer.full(chat, NOW)
    found = renderer.boundaries(chat, prompt, 0, NOW)
    asked = users_of(chat)[-4:]
    assert len(found.users) == len(asked)
    for at, boundary in zip(asked, found.users, strict=True):
        texts = data.draw(st.lists(words, min_size=1, max_size=3))
        edited = [renderer.full(edit(chat, at, text), NOW) for text in texts]
        apart = [renderer.full(edit(chat, at, text), NOW) for text in unlike(chat.messages[at])]
        check(prompt, boundary, edited, apart)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_another_talk_with_the_same_front_keeps_the_front(
    vocabulary: Vocabulary, family: str, data: st.DataObject
) -> None:
    renderer, chat = vocabulary.family(family), data.draw(chats(family))
    prompt, first = renderer.full(chat, NOW), users_of(chat)[0]
    front = renderer.boundaries(chat, prompt, 0, NOW).front
    if not (chat.tools or first):
        assert front is None
        return
    assert front is not None
    edited = [renderer.full(edit(chat, first, data.draw(words)), NOW)]
    apart = [renderer.full(edit(chat, first, text), NOW) for text in unlike(chat.messages[first])]
    check(prompt, front, edited, apart)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_what_is_appended_to_the_ledger_has_boundaries_in_its_coordinates(
    vocabulary: Vocabulary, family: str, data: st.DataObject
) -> None:
    renderer, chat = vocabulary.family(family), data.draw(chats(family))
    replies = [i + 1 for i, m in enumerate(chat.messages) if m.role == "assistant"]
    matched = data.draw(st.sampled_from(replies)) if replies else 0
    suffix = renderer.suffix(chat, matched, NOW)
    if suffix is None:
        return
    base = vocabulary.raw(data.draw(st.text(max_size=40)) + chat.messages[matched - 1].content)
    prompt = np.concatenate((base, suffix))
    found = renderer.boundaries(chat, prompt, matched, NOW)
    asked = users_of(chat, matched)[-4:]
    assert found.front is None
    assert len(found.users) == len(asked)
    for at, boundary in zip(asked, found.users, strict=True):
        check(
            prompt,
            boundary,
            [appended(renderer, base, edit(chat, at, data.draw(words)), matched)],
            [
                appended(renderer, base, edit(chat, at, text), matched)
                for text in unlike(chat.messages[at])
            ],
        )


def appended(renderer: TemplateRenderer, base: Tokens, chat: Chat, matched: int) -> Tokens:
    suffix = renderer.suffix(chat, matched, NOW)
    assert suffix is not None
    return np.concatenate((base, suffix))


TALK = Chat(
    (
        Message("system", "be brief"),
        *(m for n in range(6) for m in (Message("user", f"u{n}"), Message("assistant", f"r{n}"))),
        Message("user", "last"),
    )
)


def heads(renderer: TemplateRenderer, found: Boundaries, prompt: Tokens) -> list[str]:
    pieces = [FakeModel().piece(int(token), special=True) for token in prompt]
    return [b"".join(pieces[:at]).decode() for at in found.users]


def test_the_last_four_user_messages_are_found(by_bytes: Vocabulary) -> None:
    renderer = by_bytes.family("chatml")
    prompt = renderer.full(TALK, NOW)
    found = renderer.boundaries(TALK, prompt, 0, NOW)
    ends = [head.split("<|im_start|>")[-2:] for head in heads(renderer, found, prompt)]
    assert ends == [[f"assistant\nr{n}<|im_end|>\n", "user\n"] for n in (2, 3, 4, 5)]
    assert found.front == len(by_bytes.raw("xsystem\nbe briefx\nxuser\n"))


@pytest.mark.parametrize(("first", "expected"), [(9, 3), (11, 2), (12, 1), (13, 1), (14, 0)])
def test_only_messages_that_are_asked_for_are_found(
    by_bytes: Vocabulary, first: int, expected: int
) -> None:
    renderer = by_bytes.family("chatml")
    found = renderer.boundaries(TALK, renderer.full(TALK, NOW), first, NOW)
    assert (found.front, len(found.users)) == (None, expected)


def test_tokens_that_spell_something_else_end_the_search(by_bytes: Vocabulary) -> None:
    renderer = by_bytes.family("chatml")
    prompt = renderer.full(TALK, NOW)
    every = renderer.boundaries(TALK, prompt, 0, NOW)
    other = as_tokens([*by_bytes.raw("reasoned"), *prompt[every.users[1] + 1 :]])
    shift = len(other) - len(prompt)
    found = renderer.boundaries(TALK, other, 0, NOW)
    assert found == Boundaries(None, tuple(at + shift for at in every.users[2:]))


def test_nothing_is_found_where_the_end_is_another(by_bytes: Vocabulary) -> None:
    renderer = by_bytes.family("chatml")
    prompt = as_tokens([*renderer.full(TALK, NOW), 1])
    assert renderer.boundaries(TALK, prompt, 0, NOW) == Boundaries()


def test_a_conversation_the_template_refuses_has_no_boundaries(by_bytes: Vocabulary) -> None:
    refused = Chat((Message("user", "a"), Message("user", "b")))
    renderer = by_bytes.family("mistral")
    assert renderer.boundaries(refused, by_bytes.raw("a"), 0, NOW) == Boundaries()


def test_an_edit_the_template_refuses_has_no_boundary(by_bytes: Vocabulary) -> None:
    renderer = by_bytes.renderer(
        "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}"
        "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    )
    chat = Chat(tuple(Message(role, "u") for role in ("user", "assistant", "user")))
    found = renderer.boundaries(chat, renderer.full(chat, NOW), 0, NOW)
    assert found == Boundaries(None, (len("<u><u><"),))


@pytest.mark.parametrize(
    "content", ["{{ m.content | upper }}", "{{ m.content | length }}", "{{ '' }}"]
)
def test_a_message_that_is_not_rendered_as_it_is_has_no_boundary(
    by_bytes: Vocabulary, content: str
) -> None:
    renderer = by_bytes.renderer(f"{{% for m in messages %}}<{content}>{{% endfor %}}")
    chat = Chat((Message("user", "a"), Message("assistant", "b"), Message("user", "c")))
    assert renderer.boundaries(chat, renderer.full(chat, NOW), 0, NOW) == Boundaries()


def test_history_that_an_edit_changes_is_not_kept(by_bytes: Vocabulary) -> None:
    """As where reasoning is shown only after the last user message."""
    renderer = by_bytes.renderer(
        "{% for m in messages %}<{{ messages | length if loop.index0 == 1 }}{{ m.content }}>"
        "{% endfor %}"
    )
    chat = Chat(tuple(Message(role, "m") for role in ("user", "assistant") * 2), ())
    found = renderer.boundaries(chat, renderer.full(chat, NOW), 1, NOW)
    assert found == Boundaries(None, (len("<m><"),))


@pytest.mark.parametrize("source", [GEMMA_TEMPLATE.read_text(), vocabularies.PLAIN])
def test_a_beginning_of_text_is_before_the_front(gemma: Vocabulary, source: str) -> None:
    renderer = gemma.renderer(source)
    prompt = renderer.full(TALK, NOW)
    found = renderer.boundaries(TALK, prompt, 0, NOW)
    assert found.front is not None
    edited = [renderer.full(edit(TALK, 1, text), NOW) for text in ("no", "\n\nno", "")]
    check(prompt, found.front, edited, edited)
    assert len(found.users) == 4


def test_spaces_a_vocabulary_puts_in_are_none_of_the_text(spaced: Vocabulary) -> None:
    renderer = spaced.family("gemma")
    prompt = renderer.full(TALK, NOW)
    found = renderer.boundaries(TALK, prompt, 0, NOW)
    for at, boundary in zip(users_of(TALK)[-4:], found.users, strict=True):
        edited = [renderer.full(edit(TALK, at, text), NOW) for text in ("no", " no", "")]
        check(prompt, boundary, edited, edited)


def test_only_what_is_new_is_read(by_bytes: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = by_bytes.family("chatml")
    long = replace(TALK, messages=(Message("system", "word " * 2000), *TALK.messages[1:]))
    prompt = renderer.full(long, NOW)
    read, tokenized = [0], [0]
    piece, tokenize = FakeModel.piece, FakeModel.tokenize

    def counted_piece(self: FakeModel, token: int, *, special: bool = False) -> bytes:
        read[0] += 1
        return piece(self, token, special=special)

    def counted_text(
        self: FakeModel, text: str, *, add_special: bool, parse_special: bool
    ) -> Tokens:
        tokenized[0] += len(text)
        return tokenize(self, text, add_special=add_special, parse_special=parse_special)

    monkeypatch.setattr(FakeModel, "piece", counted_piece)
    monkeypatch.setattr(FakeModel, "tokenize", counted_text)
    assert renderer.boundaries(long, prompt, len(long.messages) - 1, NOW).users
    assert read[0] < 300
    assert tokenized[0] < 3000
