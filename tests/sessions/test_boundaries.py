"""An edit of any recent message keeps the tokens up to its boundary, however the line was made."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.chat.renderer import TemplateRenderer
from sessiond.chat.template import ChatTemplate
from sessiond.engine.fake import FakeModel
from sessiond.engine.memory import common_prefix
from sessiond.sessions.boundaries import boundaries_of, line_boundaries
from sessiond.sessions.composition import Composer, Composition
from sessiond.sessions.prompt import Boundaries
from sessiond.sessions.transcript import Chat, Content, Message, Text
from sessiond.sessions.tree import SessionTree
from tests.sessions.turns import make_turn, user

TEMPLATES = Path(__file__).parent.parent / "templates"
NOW = datetime(2025, 11, 29, 10, 2, tzinfo=UTC)
MODEL = FakeModel()
# One that goes on from the ledger, one that changes the past, and one that is rendered anew.
FAMILIES = ["chatml", "qwen", "mistral_tools"]
RENDERERS = {
    name: TemplateRenderer(MODEL, ChatTemplate((TEMPLATES / f"{name}.jinja").read_text()))
    for name in FAMILIES
}
HEADER = len(
    MODEL.tokenize("<|im_end|>\n<|im_start|>user\n", add_special=False, parse_special=True)
)
words = st.text(st.sampled_from("ab \n."), min_size=1, max_size=6)


class Talk:
    """A client that sends its whole history, without reasoning, and a ledger that keeps it all."""

    def __init__(self, renderer: TemplateRenderer, tools: tuple[str, ...] = ()) -> None:
        self.renderer = renderer
        self.tree = SessionTree()
        self.chat = Chat((Message("system", "be brief"),), tools)

    def composed(self, content: Content) -> Composition:
        return Composer(self.renderer, "vocabulary", NOW).compose(content, self.tree)

    def boundaries(self, content: Content, landing: int = 0) -> Boundaries:
        composed = self.composed(content)
        return boundaries_of(content, composed, self.tree, self.renderer, NOW, landing)

    def ask(self, *new: Message) -> Chat:
        return replace(self.chat, messages=(*self.chat.messages, *new))

    def turn(
        self, reply: str, *new: Message, thought: str = "", tokenizer: str | None = None
    ) -> None:
        """`thought` is in the tokens and in no message."""
        asked = self.ask(*new)
        composed = self.composed(asked)
        made = make_turn(
            self.tree.take_number(),
            composed.parent,
            composed.content,
            reply,
            kept=composed.kept,
            prompt=composed.own_tokens.tolist(),
            replied=list(f"{thought}{reply}".encode()),
        )
        self.tree.add(replace(made, tokenizer=tokenizer or made.tokenizer))
        self.chat = replace(asked, messages=(*asked.messages, Message("assistant", reply)))


def edits(content: Chat) -> list[Chat]:
    """One for each of the last four user messages, ascending."""
    users = [i for i, m in enumerate(content.messages) if m.role == "user"][-4:]
    return [
        replace(content, messages=(*content.messages[:at], user("Quite another"))) for at in users
    ]


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_an_edit_keeps_what_is_before_its_boundary(family: str, data: st.DataObject) -> None:
    talk = Talk(RENDERERS[family])
    thoughts = st.just("") if family == "mistral_tools" else st.sampled_from(["", "hm."])
    for _ in range(data.draw(st.integers(0, 5))):
        talk.turn(f"r{data.draw(words)}", user(data.draw(words)), thought=data.draw(thoughts))
    content = talk.ask(user(data.draw(words)))
    prompt, found = talk.composed(content).prompt, talk.boundaries(content)
    edited = edits(content)
    assert len(found.users) == len(edited)
    for boundary, other in zip(found.users, edited, strict=True):
        shared = common_prefix(prompt, talk.composed(other).prompt)
        assert shared - HEADER - 2 <= boundary <= shared
    assert found.front is not None
    alone = replace(content, messages=(content.messages[0], user("Quite another")))
    assert 0 <= common_prefix(prompt, talk.composed(alone).prompt) - found.front <= 2


def long_talk(family: str = "chatml") -> Talk:
    talk = Talk(RENDERERS[family])
    for n in range(6):
        talk.turn(f"r{n}", user(f"u{n}"), thought="hm.")
    return talk


def test_what_is_before_the_landing_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = long_talk()
    content = talk.ask(user("last"))
    kept = talk.composed(content).kept
    rendered: list[int] = []
    render = TemplateRenderer.boundaries

    def counted(*arguments: object) -> Boundaries:
        rendered.append(len(arguments))
        return render(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TemplateRenderer, "boundaries", counted)
    new = Boundaries(None, (kept + HEADER,))
    assert talk.boundaries(content, kept) == new
    assert talk.boundaries(content, kept - 1) == new
    assert len(rendered) == 2
    every = talk.boundaries(content)
    assert len(rendered) == 4
    assert (every.users[-1:], len(every.users)) == (new.users, 4)


def test_a_tool_result_brings_no_boundary() -> None:
    talk = long_talk()
    content = talk.ask(Message("tool", "out"))
    assert talk.boundaries(content, talk.composed(content).kept) == Boundaries()


def test_only_turns_beyond_the_landing_are_looked_at() -> None:
    talk = long_talk()
    path = talk.tree.path(talk.tree.leaves()[0])
    found = line_boundaries(path[-1].number, talk.tree, talk.renderer, NOW, path[3].kept)
    assert found == Boundaries(None, tuple(turn.kept for turn in path[3:]))


def test_a_turn_of_tool_results_has_none_in_a_line_either() -> None:
    talk = long_talk()
    for n in range(2):
        talk.turn(f"t{n}", Message("tool", f"out{n}"))
    path = talk.tree.path(talk.tree.leaves()[0])
    found = line_boundaries(path[-1].number, talk.tree, talk.renderer, NOW)
    assert found.users == tuple(turn.kept for turn in path[2:6])


def test_a_line_that_was_rendered_anew_on_its_way_has_all_of_them() -> None:
    talk = Talk(RENDERERS["chatml"])
    for n in range(3):
        talk.turn(f"r{n}", user(f"u{n}"), thought="hm.", tokenizer="older" if n < 2 else None)
    content = talk.ask(user("last"))
    prompt, found = talk.composed(content).prompt, talk.boundaries(content)
    assert found.front is not None
    assert len(found.users) == 4
    for boundary, other in zip(found.users[2:], edits(content)[2:], strict=True):
        assert boundary <= common_prefix(prompt, talk.composed(other).prompt)
    rendered = talk.tree.path(talk.tree.leaves()[0])[-1]
    assert all(0 < at < len(rendered.prompt_tokens) for at in found.users[:3])


def test_a_line_to_be_made_resident_has_those_of_its_turns() -> None:
    talk = long_talk()
    leaf = talk.tree.leaves()[0]
    found = line_boundaries(leaf, talk.tree, talk.renderer, NOW)
    starts = tuple(turn.kept for turn in talk.tree.path(leaf)[2:])
    assert found.users == starts[-4:]
    assert found.front == talk.boundaries(talk.ask(user("x"))).front


def test_an_identical_request_has_the_boundaries_of_the_first() -> None:
    talk = long_talk()
    asked = replace(talk.chat, messages=talk.chat.messages[:-1])
    twin, edited = talk.composed(asked), edits(asked)[-1]
    found = talk.boundaries(asked)
    assert np.array_equal(twin.prompt, talk.composed(asked).prompt)
    assert 0 <= common_prefix(twin.prompt, talk.composed(edited).prompt) - found.users[-1] <= 2


def test_raw_text_has_none() -> None:
    talk = Talk(RENDERERS["chatml"])
    assert talk.boundaries(Text("Once upon a time")) == Boundaries()
